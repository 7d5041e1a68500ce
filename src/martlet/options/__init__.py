"""The flag language, and the options of a broker and a lookup daemon, named as NSQ names its flags.

Every flag of nsqd 1.3 is here under its name, so that a command line or a config file written for
nsqd starts a Martlet broker.  What has no meaning here is accepted, and its help says what happens
instead.

Durations are nanoseconds and end in ``_ns``.  A ``BrokerOptions`` that exists is valid::

    BrokerOptions(tcp_address="127.0.0.1:0", msg_timeout_ns=parse_duration("30s"))

May import: the modules of `martlet` that are in no package.  Start with `flag`, then `options`.
The options of jobs and commands stand beside them.
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
