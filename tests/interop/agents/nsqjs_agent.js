// The agent of nsqjs; see story.py, whose values come as the last argument.
'use strict'

const nsq = require('nsqjs')
const [address, topic, channel, values, features] = process.argv.slice(2)
const story = JSON.parse(values)
const { tls, ...compression } = JSON.parse(features || '{}')
const [host, port] = address.split(':')
const options = {
  heartbeatInterval: story.HEARTBEAT_S,
  messageTimeout: 1000 * story.MESSAGE_TIMEOUT_S,
  tls: Boolean(tls), // The file itself is in NODE_EXTRA_CA_CERTS.
  ...compression,
}

const tell = (event, fields) =>
  process.stdout.write(
    JSON.stringify({ event, at_s: Number(process.hrtime.bigint()) / 1e9, ...fields }) + '\n'
  )
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

const reader = new nsq.Reader(topic, channel, {
  ...options,
  nsqdTCPAddresses: [address],
  maxInFlight: 10,
  lookupdPollInterval: 1, // With addresses given: how often it connects again.
})
reader.on('message', (message) => {
  const body = message.body.toString()
  tell('received', { body, attempts: message.attempts })
  if (body === story.AGAIN && message.attempts === 1) message.requeue(story.AGAIN_MS, false)
  else if (body === story.SLOW) finishSlowly(message)
  else message.finish()
})
reader.on('error', () => {}) // It tries again by itself.
reader.connect()

async function finishSlowly(message) {
  const ends = Date.now() + story.SLOW_S * 1000
  while (Date.now() < ends) {
    message.touch()
    await sleep(story.TOUCH_S)
  }
  message.finish()
}

// The writer leaves connecting again to the application.
let writer
function connect() {
  writer = new nsq.Writer(host, Number(port), options)
  const again = () => {
    again.planned = again.planned || setTimeout(connect, 200)
  }
  writer.on('closed', again)
  writer.on('error', again)
  writer.connect()
  return new Promise((resolve) => writer.once('ready', resolve))
}

function publish(body, send) {
  return new Promise((resolve) => {
    const done = (error) => {
      if (error) tell('failed', { body, reason: String(error) })
      else tell('published', { body })
      clearTimeout(late)
      resolve()
    }
    const late = setTimeout(() => done('no answer'), story.PUBLISH_S * 1000)
    if (writer.ready) send(done)
    else done('not connected')
  })
}

async function main() {
  await connect()
  await publish(story.TOGETHER.join(','), (done) => writer.publish(topic, story.TOGETHER, done))
  await publish(story.LATER, (done) =>
    writer.deferPublish(topic, [story.LATER], story.LATER_MS, done)
  )
  for (const body of [story.PLAIN, story.AGAIN, story.SLOW]) {
    await publish(body, (done) => writer.publish(topic, body, done))
  }
  await sleep(story.SLOW_S + 1)
  tell('quiet')
  await sleep(story.QUIET_S)
  tell('ticking')
  for (let number = 1; ; number++) {
    const body = `tick-${number}`
    await publish(body, (done) => writer.publish(topic, body, done))
    await sleep(story.TICK_S)
  }
}

main()
