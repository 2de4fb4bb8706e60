//! The time-outs of sessions by the names that options, the configuration file and the API have for
//! them.

use butterfly_datapath::Timeouts;

/// One of [`Timeouts`].
pub struct Timeout {
    /// Name as an option and in the configuration file.
    pub name: &'static str,
    /// Purpose.
    pub description: &'static str,
    field: fn(&mut Timeouts) -> &mut u32,
}

impl Timeout {
    /// The one called `name`.
    pub fn called(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|timeout| timeout.name == name)
    }

    /// Its seconds in `timeouts`.
    pub fn of(&self, timeouts: &Timeouts) -> u32 {
        *(self.field)(&mut { *timeouts })
    }

    /// Makes it `seconds` in `timeouts`.
    pub fn set(&self, timeouts: &mut Timeouts, seconds: u32) {
        *(self.field)(timeouts) = seconds;
    }
}

macro_rules! all {
    ($($name:literal $field:ident $description:literal)*) => {
        /// Every one.
        pub const ALL: &[Timeout] = &[$(Timeout { name: $name, description: $description, field: |all| &mut all.$field },)*];

        /// Does not compile while a time-out has no name.
        #[cfg(test)]
        fn each_has_a_name(Timeouts { $($field: _),* }: Timeouts) {}
    };
}

all! {
    "tcp-new" tcp_new "TCP, before the handshake is complete"
    "tcp-established" tcp_established "TCP, connected"
    "tcp-half-closed" tcp_half_closed "TCP, one side has ended"
    "tcp-closing" tcp_closing "TCP, both sides have ended or it was reset"
    "tcp-time-wait" tcp_time_wait "TCP, after the last acknowledgement"
    "tcp-cut" tcp_cut "TCP, cut by a change of rules: for so long neither end can revive it; at least --tcp-pickup"
    "udp-new" udp_new "UDP, before the first answer"
    "udp-answered" udp_answered "UDP, answered"
    "icmp-echo" icmp_echo "ICMP and ICMPv6 echo"
    "sctp-new" sctp_new "SCTP, before the handshake is complete"
    "sctp-established" sctp_established "SCTP, connected"
    "other" other "other protocols"
    "fragment" fragment "fragments, after their first one"
    "dhcp" dhcp "answers to a DHCP request"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_its_own_field() {
        each_has_a_name(Timeouts::default());
        let mut timeouts = Timeouts::default();
        for (timeout, seconds) in ALL.iter().zip(1000..) {
            Timeout::called(timeout.name).unwrap().set(&mut timeouts, seconds);
        }
        for (timeout, seconds) in ALL.iter().zip(1000..) {
            assert_eq!(timeout.of(&timeouts), seconds, "{}", timeout.name);
        }
        assert_eq!((timeouts.tcp_new, timeouts.tcp_established, timeouts.dhcp), (1000, 1001, 1013));
        assert!(Timeout::called("tcp").is_none());
    }
}
