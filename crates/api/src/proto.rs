//! The protobuf types, generated from `proto/*.proto`, where every field is
//! documented.
//!
//! All are exported here by name; the types nested in a message live in a
//! module of its name: [`message_v0::Error`], [`nic::Type`],
//! [`nic_show::Queue`].

include!(concat!(env!("OUT_DIR"), "/proto/mod.rs"));

pub use encryption::{Encrypted, Sealed, encrypted, sealed};
pub use envelope::{Error, Message, Messages, error};
pub use payload::{
    AppConfigReq, AppHealthRes, AppStatusRes, ApplyReq, ApplyRes, Attachment, CaptureReq,
    CaptureRes, Cidr, Counter, Dhcp, DhcpRoute, DropListReq, DropListRes, Event, EventListReq,
    EventListRes, ExplainReq, ExplainRes, ExplainWalk, External, FdbEntry, FdbListReq, FwData,
    MessageV0, Nat, Neighbour, NeighbourListReq, Network, Nic, NicAddRes, NicExportRes,
    NicExportToReq, NicImportReq, NicImportRes, NicLimit, NicLimits, NicReleaseRes, NicShow,
    NicStats, NicUpdateReq, PacketTrace, Pings, Request, Response, Route, Router, Rule, Session,
    SessionAdmission, SessionFilter, SessionFlushRes, SessionListReq, SessionListRes, SessionTable,
    Sg, SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq, SgRuleStats, Status, Subnet,
    TraceOptions, TraceReq, TraceRes, TraceTarget, TracedPacket, TunnelPeer, TunnelShow,
    TunnelShowReq, UpgradeCommitRes, UpgradeReq, UplinkShow, Wire, Worker, WorkerRing, apply_res,
    capture_req, drop_list_res, explain_walk, fdb_entry, message_v0, nat, nic, nic_show, rule,
    session, session_admission, session_table, trace_req, traced_packet, tunnel_show, wire,
};
