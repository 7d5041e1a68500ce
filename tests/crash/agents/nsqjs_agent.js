// The agent of nsqjs; see steps.py.
'use strict'

const nsq = require('nsqjs')
const { topic, channel, addresses, lookup } = JSON.parse(process.argv[2])
const TICK_S = 0.02
const ANSWER_S = 2

const tell = (event, fields) =>
  process.stdout.write(
    JSON.stringify({ event, at_s: Number(process.hrtime.bigint()) / 1e9, ...fields }) + '\n'
  )
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

const reader = new nsq.Reader(topic, channel, {
  ...(lookup ? { lookupdHTTPAddresses: [lookup] } : { nsqdTCPAddresses: addresses }),
  lookupdPollInterval: 1, // With addresses given: how often it connects again.
  maxInFlight: 10,
})
reader.on('message', (message) => {
  tell('received', { body: message.body.toString(), attempts: message.attempts })
  message.finish()
})
reader.on('error', () => {}) // It tries again by itself.
reader.connect()

// The writer leaves connecting again, and to which address, to the application.
let writer
let connections = 0
function connect() {
  const [host, port] = addresses[connections++ % addresses.length].split(':')
  const mine = new nsq.Writer(host, Number(port))
  const again = () => {
    if (writer === mine) {
      writer = undefined
      setTimeout(connect, 1000 * TICK_S)
    }
  }
  writer = mine
  mine.on('closed', again)
  mine.on('error', again)
  mine.connect()
}

function publish(body) {
  return new Promise((resolve) => {
    const done = (error) => {
      if (error) tell('failed', { body, reason: String(error) })
      else tell('published', { body })
      clearTimeout(late)
      resolve(!error)
    }
    const late = setTimeout(() => done('no answer'), 1000 * ANSWER_S)
    if (writer && writer.ready) writer.publish(topic, body, done)
    else done('not connected')
  })
}

async function main() {
  connect()
  for (let number = 0; ; number++) {
    while (!(await publish(String(number)))) await sleep(TICK_S)
    await sleep(TICK_S)
  }
}

main()
