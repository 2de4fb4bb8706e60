//! Action that a request asks for.

use crate::proto::{
    AppConfigReq, ApplyReq, Attachment, CaptureReq, DropListReq, EventListReq, ExplainReq,
    External, FdbListReq, Nat, Neighbour, NeighbourListReq, Network, Nic, NicExportToReq,
    NicImportReq, NicUpdateReq, Request, Route, Router, SessionFilter, SessionListReq, Sg,
    SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq, TraceReq, TunnelPeer,
    TunnelShowReq, UpgradeReq,
};

/// The one thing a [`Request`] asks for; the fields of [`Request`] say what each means.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Action<'a> {
    NicAdd(&'a Nic),
    NicUpdate(&'a NicUpdateReq),
    NicDel(&'a str),
    NicList,
    /// Details of one vnic, or with an empty id of all.
    NicDetails(&'a str),
    NicExport(&'a str),
    NicStats(&'a str),
    SgAdd(&'a Sg),
    SgDel(&'a str),
    SgList,
    SgRuleAdd(&'a SgRuleAddReq),
    SgRuleDel(&'a SgRuleDelReq),
    SgRuleList(&'a str),
    SgMemberAdd(&'a SgMemberAddReq),
    SgMemberDel(&'a SgMemberDelReq),
    SgMemberList(&'a str),
    AppStatus,
    AppQuit,
    AppConfig(&'a AppConfigReq),
    /// Details of one security group, or with an empty id of all.
    SgDetails(&'a str),
    NicShow(&'a str),
    FdbList(&'a FdbListReq),
    WorkerList,
    SessionList(&'a SessionListReq),
    SessionFlush(&'a SessionFilter),
    SgRuleStats(&'a str),
    SessionTable,
    TunnelShow(&'a TunnelShowReq),
    UplinkShow,
    PeerAdd(&'a TunnelPeer),
    PeerDel(&'a TunnelPeer),
    PeerList,
    Explain(&'a ExplainReq),
    DropList(&'a DropListReq),
    EventList(&'a EventListReq),
    Trace(&'a TraceReq),
    Capture(&'a CaptureReq),
    AppHealth,
    Apply(&'a ApplyReq),
    /// One vnic, or with an empty id all.
    NicRelease(&'a str),
    NicExportTo(&'a NicExportToReq),
    NicImport(&'a NicImportReq),
    Upgrade(&'a UpgradeReq),
    UpgradeCommit,
    NetworkAdd(&'a Network),
    NetworkDel(u32),
    NetworkList,
    RouterAdd(&'a Router),
    RouterDel(&'a str),
    RouterList,
    RouterAttach(&'a Attachment),
    RouterDetach(&'a Attachment),
    RouteAdd(&'a Route),
    RouteDel(&'a Route),
    ExternalAdd(&'a External),
    ExternalDel(&'a str),
    ExternalList,
    NatAdd(&'a Nat),
    NatDel(&'a Nat),
    NatList,
    NeighbourAdd(&'a Neighbour),
    NeighbourDel(&'a Neighbour),
    NeighbourList(&'a NeighbourListReq),
}

impl<'a> Action<'a> {
    /// The action of `request`: of the field with the lowest number when several are set, none when
    /// none is that we know.
    pub fn of(request: &'a Request) -> Option<Self> {
        let nic_add = request.nic_add.as_ref().map(Self::NicAdd);
        nic_add
            .or_else(|| request.nic_update.as_ref().map(Self::NicUpdate))
            .or_else(|| request.nic_del.as_deref().map(Self::NicDel))
            .or_else(|| request.nic_list.map(|_| Self::NicList))
            .or_else(|| request.nic_details.as_deref().map(Self::NicDetails))
            .or_else(|| request.nic_export.as_deref().map(Self::NicExport))
            .or_else(|| request.nic_stats.as_deref().map(Self::NicStats))
            .or_else(|| request.sg_add.as_ref().map(Self::SgAdd))
            .or_else(|| request.sg_del.as_deref().map(Self::SgDel))
            .or_else(|| request.sg_list.map(|_| Self::SgList))
            .or_else(|| request.sg_rule_add.as_ref().map(Self::SgRuleAdd))
            .or_else(|| request.sg_rule_del.as_ref().map(Self::SgRuleDel))
            .or_else(|| request.sg_rule_list.as_deref().map(Self::SgRuleList))
            .or_else(|| request.sg_member_add.as_ref().map(Self::SgMemberAdd))
            .or_else(|| request.sg_member_del.as_ref().map(Self::SgMemberDel))
            .or_else(|| request.sg_member_list.as_deref().map(Self::SgMemberList))
            .or_else(|| request.app_status.map(|_| Self::AppStatus))
            .or_else(|| request.app_quit.map(|_| Self::AppQuit))
            .or_else(|| request.app_config.as_ref().map(Self::AppConfig))
            .or_else(|| request.sg_details.as_deref().map(Self::SgDetails))
            .or_else(|| request.nic_show.as_deref().map(Self::NicShow))
            .or_else(|| request.fdb_list.as_ref().map(Self::FdbList))
            .or_else(|| request.worker_list.map(|_| Self::WorkerList))
            .or_else(|| request.session_list.as_ref().map(Self::SessionList))
            .or_else(|| request.session_flush.as_ref().map(Self::SessionFlush))
            .or_else(|| request.sg_rule_stats.as_deref().map(Self::SgRuleStats))
            .or_else(|| request.session_table.map(|_| Self::SessionTable))
            .or_else(|| request.tunnel_show.as_ref().map(Self::TunnelShow))
            .or_else(|| request.uplink_show.map(|_| Self::UplinkShow))
            .or_else(|| request.peer_add.as_ref().map(Self::PeerAdd))
            .or_else(|| request.peer_del.as_ref().map(Self::PeerDel))
            .or_else(|| request.peer_list.map(|_| Self::PeerList))
            .or_else(|| request.explain.as_ref().map(Self::Explain))
            .or_else(|| request.drop_list.as_ref().map(Self::DropList))
            .or_else(|| request.event_list.as_ref().map(Self::EventList))
            .or_else(|| request.trace.as_ref().map(Self::Trace))
            .or_else(|| request.capture.as_ref().map(Self::Capture))
            .or_else(|| request.app_health.map(|_| Self::AppHealth))
            .or_else(|| request.apply.as_ref().map(Self::Apply))
            .or_else(|| request.nic_release.as_deref().map(Self::NicRelease))
            .or_else(|| request.nic_export_to.as_ref().map(Self::NicExportTo))
            .or_else(|| request.nic_import.as_ref().map(Self::NicImport))
            .or_else(|| request.upgrade.as_ref().map(Self::Upgrade))
            .or_else(|| request.upgrade_commit.map(|_| Self::UpgradeCommit))
            .or_else(|| request.network_add.as_ref().map(Self::NetworkAdd))
            .or_else(|| request.network_del.map(Self::NetworkDel))
            .or_else(|| request.network_list.map(|_| Self::NetworkList))
            .or_else(|| request.router_add.as_ref().map(Self::RouterAdd))
            .or_else(|| request.router_del.as_deref().map(Self::RouterDel))
            .or_else(|| request.router_list.map(|_| Self::RouterList))
            .or_else(|| request.router_attach.as_ref().map(Self::RouterAttach))
            .or_else(|| request.router_detach.as_ref().map(Self::RouterDetach))
            .or_else(|| request.route_add.as_ref().map(Self::RouteAdd))
            .or_else(|| request.route_del.as_ref().map(Self::RouteDel))
            .or_else(|| request.external_add.as_ref().map(Self::ExternalAdd))
            .or_else(|| request.external_del.as_deref().map(Self::ExternalDel))
            .or_else(|| request.external_list.map(|_| Self::ExternalList))
            .or_else(|| request.nat_add.as_ref().map(Self::NatAdd))
            .or_else(|| request.nat_del.as_ref().map(Self::NatDel))
            .or_else(|| request.nat_list.map(|_| Self::NatList))
            .or_else(|| request.neighbour_add.as_ref().map(Self::NeighbourAdd))
            .or_else(|| request.neighbour_del.as_ref().map(Self::NeighbourDel))
            .or_else(|| request.neighbour_list.as_ref().map(Self::NeighbourList))
    }

    /// True if it changes what is declared, which a store keeps, or how.
    pub fn declares(&self) -> bool {
        match self {
            Self::NicAdd(_)
            | Self::NicUpdate(_)
            | Self::NicDel(_)
            | Self::SgAdd(_)
            | Self::SgDel(_)
            | Self::SgRuleAdd(_)
            | Self::SgRuleDel(_)
            | Self::SgMemberAdd(_)
            | Self::SgMemberDel(_)
            | Self::PeerAdd(_)
            | Self::PeerDel(_)
            | Self::NetworkAdd(_)
            | Self::NetworkDel(_)
            | Self::RouterAdd(_)
            | Self::RouterDel(_)
            | Self::RouterAttach(_)
            | Self::RouterDetach(_)
            | Self::RouteAdd(_)
            | Self::RouteDel(_)
            | Self::ExternalAdd(_)
            | Self::ExternalDel(_)
            | Self::NatAdd(_)
            | Self::NatDel(_)
            | Self::NeighbourAdd(_)
            | Self::NeighbourDel(_)
            | Self::UpgradeCommit => true,
            Self::Apply(request) => !request.dry_run(),
            _ => false,
        }
    }

    /// True if it may leave something behind, so that carrying it out twice differs from once.
    pub fn changes(&self) -> bool {
        match self {
            Self::NicAdd(_)
            | Self::NicUpdate(_)
            | Self::NicDel(_)
            | Self::SgAdd(_)
            | Self::SgDel(_)
            | Self::SgRuleAdd(_)
            | Self::SgRuleDel(_)
            | Self::SgMemberAdd(_)
            | Self::SgMemberDel(_)
            | Self::AppQuit
            | Self::AppConfig(_)
            | Self::SessionFlush(_)
            | Self::PeerAdd(_)
            | Self::PeerDel(_)
            | Self::Trace(_)
            | Self::Capture(_)
            | Self::Apply(_)
            | Self::NicRelease(_)
            | Self::NicExportTo(_)
            | Self::NicImport(_)
            | Self::Upgrade(_)
            | Self::NetworkAdd(_)
            | Self::NetworkDel(_)
            | Self::RouterAdd(_)
            | Self::RouterDel(_)
            | Self::RouterAttach(_)
            | Self::RouterDetach(_)
            | Self::RouteAdd(_)
            | Self::RouteDel(_)
            | Self::ExternalAdd(_)
            | Self::ExternalDel(_)
            | Self::NatAdd(_)
            | Self::NatDel(_)
            | Self::NeighbourAdd(_)
            | Self::NeighbourDel(_)
            | Self::UpgradeCommit => true,
            Self::NicList
            | Self::NicDetails(_)
            | Self::NicExport(_)
            | Self::NicStats(_)
            | Self::SgList
            | Self::SgRuleList(_)
            | Self::SgMemberList(_)
            | Self::AppStatus
            | Self::SgDetails(_)
            | Self::NicShow(_)
            | Self::FdbList(_)
            | Self::WorkerList
            | Self::SessionList(_)
            | Self::SgRuleStats(_)
            | Self::SessionTable
            | Self::TunnelShow(_)
            | Self::UplinkShow
            | Self::PeerList
            | Self::Explain(_)
            | Self::DropList(_)
            | Self::EventList(_)
            | Self::AppHealth
            | Self::NetworkList
            | Self::RouterList
            | Self::ExternalList
            | Self::NatList
            | Self::NeighbourList(_) => false,
        }
    }

    /// The name of its field in [`Request`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::NicAdd(_) => "nic_add",
            Self::NicUpdate(_) => "nic_update",
            Self::NicDel(_) => "nic_del",
            Self::NicList => "nic_list",
            Self::NicDetails(_) => "nic_details",
            Self::NicExport(_) => "nic_export",
            Self::NicStats(_) => "nic_stats",
            Self::SgAdd(_) => "sg_add",
            Self::SgDel(_) => "sg_del",
            Self::SgList => "sg_list",
            Self::SgRuleAdd(_) => "sg_rule_add",
            Self::SgRuleDel(_) => "sg_rule_del",
            Self::SgRuleList(_) => "sg_rule_list",
            Self::SgMemberAdd(_) => "sg_member_add",
            Self::SgMemberDel(_) => "sg_member_del",
            Self::SgMemberList(_) => "sg_member_list",
            Self::AppStatus => "app_status",
            Self::AppQuit => "app_quit",
            Self::AppConfig(_) => "app_config",
            Self::SgDetails(_) => "sg_details",
            Self::NicShow(_) => "nic_show",
            Self::FdbList(_) => "fdb_list",
            Self::WorkerList => "worker_list",
            Self::SessionList(_) => "session_list",
            Self::SessionFlush(_) => "session_flush",
            Self::SgRuleStats(_) => "sg_rule_stats",
            Self::SessionTable => "session_table",
            Self::TunnelShow(_) => "tunnel_show",
            Self::UplinkShow => "uplink_show",
            Self::PeerAdd(_) => "peer_add",
            Self::Upgrade(_) => "upgrade",
            Self::UpgradeCommit => "upgrade_commit",
            Self::PeerDel(_) => "peer_del",
            Self::PeerList => "peer_list",
            Self::Explain(_) => "explain",
            Self::DropList(_) => "drop_list",
            Self::EventList(_) => "event_list",
            Self::Trace(_) => "trace",
            Self::Capture(_) => "capture",
            Self::AppHealth => "app_health",
            Self::Apply(_) => "apply",
            Self::NicRelease(_) => "nic_release",
            Self::NicExportTo(_) => "nic_export_to",
            Self::NicImport(_) => "nic_import",
            Self::NetworkAdd(_) => "network_add",
            Self::NetworkDel(_) => "network_del",
            Self::NetworkList => "network_list",
            Self::RouterAdd(_) => "router_add",
            Self::RouterDel(_) => "router_del",
            Self::RouterList => "router_list",
            Self::RouterAttach(_) => "router_attach",
            Self::RouterDetach(_) => "router_detach",
            Self::RouteAdd(_) => "route_add",
            Self::RouteDel(_) => "route_del",
            Self::ExternalAdd(_) => "external_add",
            Self::ExternalDel(_) => "external_del",
            Self::ExternalList => "external_list",
            Self::NatAdd(_) => "nat_add",
            Self::NatDel(_) => "nat_del",
            Self::NatList => "nat_list",
            Self::NeighbourAdd(_) => "neighbour_add",
            Self::NeighbourDel(_) => "neighbour_del",
            Self::NeighbourList(_) => "neighbour_list",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    /// Every field of the request, in number order, as text and as what it must become.
    const FIELDS: [(&str, &str); 63] = [
        (r#"nic_add { id: "x" mac: "m" vni: 1 }"#, "NicAdd"),
        (r#"nic_update { id: "x" }"#, "NicUpdate"),
        (r#"nic_del: "x""#, r#"NicDel("x")"#),
        ("nic_list: false", "NicList"),
        (r#"nic_details: """#, r#"NicDetails("")"#),
        (r#"nic_export: "x""#, r#"NicExport("x")"#),
        (r#"nic_stats: "x""#, r#"NicStats("x")"#),
        (r#"sg_add { id: "x" }"#, "SgAdd"),
        (r#"sg_del: "x""#, r#"SgDel("x")"#),
        ("sg_list: false", "SgList"),
        (r#"sg_rule_add { sg_id: "x" rule { direction: INBOUND protocol: -1 } }"#, "SgRuleAdd"),
        (r#"sg_rule_del { sg_id: "x" rule { direction: INBOUND protocol: -1 } }"#, "SgRuleDel"),
        (r#"sg_rule_list: "x""#, r#"SgRuleList("x")"#),
        (r#"sg_member_add { sg_id: "x" member: "m" }"#, "SgMemberAdd"),
        (r#"sg_member_del { sg_id: "x" member: "m" }"#, "SgMemberDel"),
        (r#"sg_member_list: "x""#, r#"SgMemberList("x")"#),
        ("app_status: false", "AppStatus"),
        ("app_quit: false", "AppQuit"),
        ("app_config { }", "AppConfig"),
        (r#"sg_details: """#, r#"SgDetails("")"#),
        (r#"nic_show: "x""#, r#"NicShow("x")"#),
        ("fdb_list { }", "FdbList"),
        ("worker_list: false", "WorkerList"),
        ("session_list { }", "SessionList"),
        ("session_flush { }", "SessionFlush"),
        (r#"sg_rule_stats: "x""#, r#"SgRuleStats("x")"#),
        ("session_table: false", "SessionTable"),
        ("tunnel_show { }", "TunnelShow"),
        ("uplink_show: false", "UplinkShow"),
        ("peer_add { }", "PeerAdd"),
        ("peer_del { }", "PeerDel"),
        ("peer_list: false", "PeerList"),
        ("explain { }", "Explain"),
        ("drop_list { }", "DropList"),
        ("event_list { }", "EventList"),
        ("trace { }", "Trace"),
        ("capture { }", "Capture"),
        ("app_health: false", "AppHealth"),
        ("apply { }", "Apply"),
        (r#"nic_release: "x""#, r#"NicRelease("x")"#),
        ("nic_export_to { }", "NicExportTo"),
        ("nic_import { }", "NicImport"),
        ("upgrade { }", "Upgrade"),
        ("upgrade_commit: true", "UpgradeCommit"),
        ("network_add { vni: 42 }", "NetworkAdd"),
        ("network_del: 42", "NetworkDel(42)"),
        ("network_list: false", "NetworkList"),
        (r#"router_add { id: "r" }"#, "RouterAdd"),
        (r#"router_del: "r""#, r#"RouterDel("r")"#),
        ("router_list: false", "RouterList"),
        (r#"router_attach { router: "r" vni: 42 }"#, "RouterAttach"),
        (r#"router_detach { router: "r" vni: 42 }"#, "RouterDetach"),
        (r#"route_add { router: "r" via: "10.0.0.9" }"#, "RouteAdd"),
        (r#"route_del { router: "r" }"#, "RouteDel"),
        (r#"external_add { id: "x" }"#, "ExternalAdd"),
        (r#"external_del: "x""#, r#"ExternalDel("x")"#),
        ("external_list: false", "ExternalList"),
        (r#"nat_add { router: "r" }"#, "NatAdd"),
        (r#"nat_del { router: "r" }"#, "NatDel"),
        ("nat_list: false", "NatList"),
        (r#"neighbour_add { vni: 42 address: "10.0.0.2" }"#, "NeighbourAdd"),
        (r#"neighbour_del { vni: 42 address: "10.0.0.2" }"#, "NeighbourDel"),
        ("neighbour_list { }", "NeighbourList"),
    ];

    #[test]
    fn each_field_is_an_action() {
        for (field, expected) in FIELDS {
            let request = text::parse(field).unwrap();
            let action = format!("{:?}", Action::of(&request).unwrap());
            assert!(
                action == expected || action.starts_with(&format!("{expected}(")),
                "{field} became {action}"
            );
        }
    }

    #[test]
    fn the_lowest_number_wins() {
        for from in 0..FIELDS.len() {
            let rest: Vec<_> = FIELDS[from..].iter().map(|(field, _)| *field).collect();
            let (alone, all) =
                (text::parse(rest[0]).unwrap(), text::parse(&rest.join(" ")).unwrap());
            assert_eq!(Action::of(&all), Action::of(&alone), "from {}", rest[0]);
        }
    }

    #[test]
    fn nothing_asked_is_no_action() {
        assert_eq!(Action::of(&Request::new()), None);
    }
}
