//! Ports that lead out of the host. There are none yet: networks end at their host.

#![forbid(unsafe_code)]
