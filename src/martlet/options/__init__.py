"""The options of a broker: one field each, named as NSQ names its flags.

Every flag of nsqd 1.3 is here under its name, so that a command line or a config file written for
nsqd starts a Martlet broker.  What has no meaning here is accepted, and its help says what happens
instead.  What would be unsafe to ignore and is not there yet is refused.

Durations are nanoseconds and end in ``_ns``.  A ``BrokerOptions`` that exists is valid::

    BrokerOptions(tcp_address="127.0.0.1:0", msg_timeout_ns=parse_duration("30s"))
"""

from martlet.options.broker import BrokerOptions
from martlet.options.flag import Flag, FlagKind, OptionError, parse_bool
from martlet.options.lookup import LookupOptions
from martlet.options.options import LogLevel, LogOptions, Options
from martlet.options.security import TlsRequired, TlsVersion

__all__ = [
    "BrokerOptions",
    "Flag",
    "FlagKind",
    "LogLevel",
    "LogOptions",
    "LookupOptions",
    "OptionError",
    "Options",
    "TlsRequired",
    "TlsVersion",
    "parse_bool",
]
