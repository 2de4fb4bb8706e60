//! Answers for the tunnel endpoint, if no other station holds its address: ARP (RFC 826), neighbour
//! solicitations (RFC 4861), pings (RFC 792, RFC 4443). Also announces its address (RFC 5227, 2.3).

use std::net::{IpAddr, Ipv6Addr};

use butterfly_packet::{
    Mac, build,
    icmp::{self, Icmp},
    ipv4::Ipv4,
    ipv6::{self, Ipv6},
};

use crate::endpoint::control::{
    Output,
    counts::Count,
    link::{self, Link},
};

/// Pings that are answered at once, and per millisecond after that.
const ECHO_BURST: u64 = 100;
/// Milliseconds between announcements (RFC 5227, 2.3), and how many there are.
const ANNOUNCE_EVERY: u64 = 2000;
const ANNOUNCEMENTS: u8 = 2;
/// Milliseconds between announcements that defend the address (RFC 5227, 2.4).
const DEFEND_EVERY: u64 = 10_000;

/// The endpoint as others see it.
pub(super) struct Endpoint {
    answers: bool,
    announcements: u8,
    /// Time of the next announcement.
    next: u64,
    defended: Option<u64>,
    echo: u64,
    echo_at: u64,
    identification: u16,
}

impl Endpoint {
    /// Announces itself from the first [`Self::tick`] on, if it `answers`.
    pub fn new(answers: bool) -> Endpoint {
        let mut endpoint = Endpoint {
            answers,
            announcements: 0,
            next: u64::MAX,
            defended: None,
            echo: ECHO_BURST,
            echo_at: 0,
            identification: 0,
        };
        endpoint.announce(0);
        endpoint
    }

    /// Announces itself from the next [`Self::tick`] on, if it `answers`.
    pub fn announce(&mut self, now: u64) {
        if self.answers {
            (self.announcements, self.next) = (ANNOUNCEMENTS, now);
        }
    }

    pub fn answers(&self) -> bool {
        self.answers
    }

    /// Returns the time at which [`Self::tick`] has something to do.
    pub fn wake(&self) -> u64 {
        self.next
    }

    /// Lets time pass.
    pub fn tick(&mut self, link: &Link, now: u64, out: &mut Output) {
        if self.next <= now {
            out.frames.push(link.announcement());
            self.announcements = self.announcements.saturating_sub(1);
            self.next = if self.announcements > 0 { now + ANNOUNCE_EVERY } else { u64::MAX };
        }
    }

    /// Tells all stations that the address is ours, because another station claims it. Does so no
    /// more often than an honest station needs.
    pub fn defend(&mut self, link: &Link, now: u64, out: &mut Output) {
        if self.answers && self.defended.is_none_or(|at| now >= at + DEFEND_EVERY) {
            self.defended = Some(now);
            out.frames.push(link.announcement());
        }
    }

    /// Answers a neighbour solicitation that was found valid, and is for the endpoint.
    pub fn solicited(
        &self,
        link: &Link,
        me: Ipv6Addr,
        from: (Mac, Ipv6Addr),
        out: &mut Output,
    ) -> Count {
        if !self.answers {
            return Count::Ignored;
        }
        let (mac, ip) = from;
        out.frames.push(if ip.is_unspecified() {
            // The sender asks whether it may have our address (RFC 4862, 5.4.3; RFC 4861, 7.2.4).
            link.advertisement(me, Mac::of_group_v6(ipv6::ALL_NODES), ipv6::ALL_NODES, 0)
        } else {
            link.advertisement(me, mac, ip, link::SOLICITED)
        });
        Count::Answered
    }

    /// Answers a ping over IPv4.
    pub fn ping_v4(
        &mut self,
        link: &Link,
        macs: (Mac, Mac),
        ip: &Ipv4<'_>,
        message: &Icmp<'_>,
        now: u64,
        out: &mut Output,
    ) -> Count {
        if let Some(refusal) = self.refuses(
            link,
            macs.1,
            (ip.source().into(), ip.destination().into()),
            message,
            icmp::v4::ECHO_REQUEST,
        ) {
            return refusal;
        }
        if !link.is_host_v4(ip.source()) {
            return Count::Misdirected;
        }
        if !self.may_answer(now) {
            return Count::EchoLimit;
        }
        self.identification = self.identification.wrapping_add(1);
        let reply = build::ethernet(link.mac, macs.0).ipv4(ip.destination(), ip.source());
        let reply = reply.tos(ip.tos()).identification(self.identification);
        out.frames.push(reply.icmp(
            icmp::v4::ECHO_REPLY,
            0,
            message.rest_of_header(),
            message.body(),
        ));
        Count::Echo
    }

    /// Answers a ping over IPv6.
    pub fn ping_v6(
        &mut self,
        link: &Link,
        macs: (Mac, Mac),
        ip: &Ipv6<'_>,
        message: &Icmp<'_>,
        now: u64,
        out: &mut Output,
    ) -> Count {
        if let Some(refusal) = self.refuses(
            link,
            macs.1,
            (ip.source().into(), ip.destination().into()),
            message,
            icmp::v6::ECHO_REQUEST,
        ) {
            return refusal;
        }
        if !link::is_host_v6(ip.source()) {
            return Count::Misdirected;
        }
        if !self.may_answer(now) {
            return Count::EchoLimit;
        }
        let reply = build::ethernet(link.mac, macs.0)
            .ipv6(ip.destination(), ip.source())
            .tos(ip.traffic_class());
        out.frames.push(reply.icmp(
            icmp::v6::ECHO_REPLY,
            0,
            message.rest_of_header(),
            message.body(),
        ));
        Count::Echo
    }

    fn refuses(
        &self,
        link: &Link,
        to: Mac,
        ips: (IpAddr, IpAddr),
        message: &Icmp<'_>,
        request: u8,
    ) -> Option<Count> {
        if !self.answers || (message.kind(), message.code()) != (request, 0) {
            return Some(Count::Ignored);
        }
        (to != link.mac || ips.1 != link.endpoint || ips.0 == link.endpoint)
            .then_some(Count::Misdirected)
    }

    fn may_answer(&mut self, now: u64) -> bool {
        let passed = now.saturating_sub(self.echo_at);
        self.echo_at = self.echo_at.max(now);
        self.echo = self.echo.saturating_add(passed).min(ECHO_BURST);
        let allowed = self.echo > 0;
        self.echo = self.echo.saturating_sub(1);
        allowed
    }
}
