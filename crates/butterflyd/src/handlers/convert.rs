//! Between messages of the API and the types of the model.

use butterfly_api::{Failure, proto};
use butterfly_control::{Refused, TunnelPeer};
use butterfly_model::{
    Bench, Cidr, Dhcp, DhcpError, DhcpRoute, Direction, External, ExternalError, ExternalId,
    ForwardProtocol, GroupName, GroupNameError, GroupNames, IpSet, Kind, Limit, LimitError, Limits,
    Mac, Member, Nat, NatError, NatPlace, NatRule, Neighbour, Netns, Network, Nic, NicId,
    NicUpdate, Peer, Prefix, PrefixSet, Protocol, Role, Route, Router, RouterAddresses, RouterId,
    Rule, RuleError, SecurityGroup, SocketDir, Subnet, TraceOptions, Vni, WireDevice, canonical,
    parse_ip,
};
use protobuf::MessageField;
use tracing::warn;

use std::{
    fmt::{self, Display},
    net::{IpAddr, SocketAddrV4},
    path::Path,
};

/// The failure `description` of the protocol, explained by `error`.
fn refused(description: &'static str) -> impl Fn(&dyn Display) -> Failure {
    move |error| Failure::new(description).with_help(error.to_string())
}

/// Checks the declaration of a vnic.
pub fn nic(declared: &proto::Nic, directory: &SocketDir) -> Result<Nic, Failure> {
    let bad = refused("Bad NIC format");
    let id = NicId::new(declared.id()).map_err(|error| bad(&error))?;
    Ok(Nic {
        mac: Mac::parse(declared.mac()).map_err(|error| bad(&error))?,
        vni: Vni::new(declared.vni()).map_err(|error| bad(&error))?,
        ips: IpSet::parse(&declared.ip).map_err(|error| bad(&error))?,
        prefixes: PrefixSet::parse(&declared.prefix).map_err(|error| bad(&error))?,
        security_groups: groups(declared).map_err(|error| bad(&error))?,
        ip_anti_spoof: declared.ip_anti_spoof(),
        bypass_filtering: declared.bypass_filtering(),
        forwards: declared.forwards(),
        shared_ip: declared.shared_ip(),
        router: declared.router(),
        limits: Limits {
            from_guest: limit(&declared.limits.in_)
                .map_err(|error| bad(&error))?
                .unwrap_or_default(),
            to_guest: limit(&declared.limits.out).map_err(|error| bad(&error))?.unwrap_or_default(),
        },
        sniff_target: sniff_target(declared).map_err(|error| bad(&error))?,
        kind: kind(declared, &id, directory)?,
        packet_trace: declared.packet_trace(),
        packet_trace_path: declared.packet_trace_path.clone(),
        trace_options: declared
            .packet_trace_options
            .as_ref()
            .map(trace_options)
            .transpose()?
            .unwrap_or_default(),
        id,
    })
}

/// Returns why the desired state is refused, in the texts of the protocol.
pub fn refusal(why: Refused) -> Failure {
    let text = why.to_string();
    match why {
        Refused::BenchWithoutAddress | Refused::BenchFamily { .. } => {
            Failure::new("Internal error").with_help(text)
        }
        Refused::CannotForward(_) => Failure::new(text).with_help(
            "declare it anew with both: butterfly nic add --id NIC ... --bypass-filtering --forwards",
        ),
        _ => Failure::new(text),
    }
}

/// A group without a name has no rules and no members.
fn groups(declared: &proto::Nic) -> Result<GroupNames, GroupNameError> {
    let named = declared.security_group.iter().filter(|name| !name.is_empty());
    if named.clone().count() < declared.security_group.len() {
        warn!(NIC = declared.id(), "a security group without a name is left out");
    }
    GroupNames::parse(named)
}

/// An id that no vnic can have would never be one to mirror. An empty one is none.
fn sniff_target(declared: &proto::Nic) -> Result<Option<String>, butterfly_model::NicIdError> {
    let target = declared.sniff_target_nic_id.as_deref().filter(|target| !target.is_empty());
    target.map(|target| NicId::new(target).map(|id| id.as_str().to_owned())).transpose()
}

fn kind(declared: &proto::Nic, id: &NicId, directory: &SocketDir) -> Result<Kind, Failure> {
    use proto::nic::Type;
    let bad = refused("Bad NIC format");
    let vhost_user = |role| {
        let path = declared.path.as_deref().map(Path::new);
        Kind::vhost_user(role, id, path, directory).map_err(|error| bad(&error))
    };
    match declared.type_.map_or(Ok(Type::VHOST_USER_SERVER), |kind| kind.enum_value()) {
        Ok(Type::VHOST_USER_SERVER) => vhost_user(Role::Server),
        Ok(Type::VHOST_USER_CLIENT) => vhost_user(Role::Client),
        Ok(Type::TAP) => {
            let netns = declared
                .netns
                .as_deref()
                .map(Netns::new)
                .transpose()
                .map_err(|error| bad(&error))?;
            Ok(Kind::Tap { netns })
        }
        Ok(Type::BENCH) => bench(declared).map(Kind::Bench),
        // As the original reads it.
        Err(number) => {
            warn!(
                NIC = id.as_str(),
                "nic type {number} is not known to this version: it is taken for VHOST_USER_SERVER"
            );
            vhost_user(Role::Server)
        }
    }
}

fn bench(declared: &proto::Nic) -> Result<Bench, Failure> {
    let incomplete = refused("Internal error");
    match declared.btype() {
        "ICMP_RCV_LIKE" => Ok(Bench::IcmpReceiver),
        "ICMP_SND_LIKE" => {
            let (Some(ip), Some(mac)) = (&declared.dip, &declared.dmac) else {
                return Err(incomplete(&"a sender needs dip and dmac: to whom it sends"));
            };
            let mac = Mac::parse(mac).map_err(|error| refused("Bad NIC format")(&error))?;
            let ip =
                parse_ip(ip).map_err(|_| Failure::new(format!("can't convert \"{ip}\" to IP")))?;
            Ok(Bench::IcmpSender { ip, mac })
        }
        _ => Err(incomplete(&"btype of a nic of type BENCH is ICMP_SND_LIKE or ICMP_RCV_LIKE")),
    }
}

/// Checks a change of a vnic. An absent list changes nothing, one with a single empty text clears.
pub fn nic_update(request: &proto::NicUpdateReq) -> Result<NicUpdate, Failure> {
    let bad = refused("Bad Nic update format");
    let given = |list: &[String]| match list {
        [] => None,
        [only] if only.is_empty() => Some(Vec::new()),
        list => Some(list.to_vec()),
    };
    Ok(NicUpdate {
        ip_anti_spoof: request.ip_anti_spoof,
        forwards: request.forwards,
        shared_ip: request.shared_ip,
        router: request.router,
        limit_from_guest: limit(&request.limits.in_).map_err(|error| bad(&error))?,
        limit_to_guest: limit(&request.limits.out).map_err(|error| bad(&error))?,
        ips: given(&request.ip).map(IpSet::parse).transpose().map_err(|error| bad(&error))?,
        prefixes: given(&request.prefix)
            .map(PrefixSet::parse)
            .transpose()
            .map_err(|error| bad(&error))?,
        security_groups: given(&request.security_group)
            .map(GroupNames::parse)
            .transpose()
            .map_err(|error| bad(&error))?,
        packet_trace: request.packet_trace,
        packet_trace_path: request.packet_trace_path.clone(),
        trace_options: request.packet_trace_options.as_ref().map(trace_options).transpose()?,
    })
}

/// A vnic as it is echoed, with the name of its TAP device. Given back as a declaration, it changes
/// nothing.
pub fn nic_details(nic: &Nic, interface: Option<String>) -> proto::Nic {
    let (btype, sends_to) = match &nic.kind {
        Kind::Bench(Bench::IcmpSender { ip, mac }) => (Some("ICMP_SND_LIKE"), Some((ip, mac))),
        Kind::Bench(Bench::IcmpReceiver) => (Some("ICMP_RCV_LIKE"), None),
        Kind::VhostUser { .. } | Kind::Tap { .. } => (None, None),
    };
    proto::Nic {
        id: Some(nic.id.as_str().to_owned()),
        mac: Some(nic.mac.text().to_owned()),
        vni: Some(nic.vni.number()),
        ip: nic.ips.texts(),
        prefix: nic.prefixes.texts(),
        security_group: nic.security_groups.texts(),
        ip_anti_spoof: Some(nic.ip_anti_spoof),
        sniff_target_nic_id: nic.sniff_target.clone(),
        bypass_filtering: Some(nic.bypass_filtering),
        // Absent if not set: a dump goes back to the original, which does not know them.
        forwards: nic.forwards.then_some(true),
        shared_ip: nic.shared_ip.then_some(true),
        // Told if it is one: the original's clients do not know the field.
        router: nic.router.then_some(true),
        limits: limits(&nic.limits, None).into(),
        type_: Some(nic_type(&nic.kind).into()),
        path: nic.kind.socket().map(ToString::to_string).or(interface),
        btype: btype.map(str::to_owned),
        dip: sends_to.map(|(ip, _)| canonical(*ip)),
        dmac: sends_to.map(|(_, mac)| mac.text().to_owned()),
        netns: netns(&nic.kind),
        packet_trace: Some(nic.packet_trace),
        packet_trace_path: nic.packet_trace_path.clone(),
        packet_trace_options: echoed(&nic.trace_options).into(),
        ..Default::default()
    }
}

/// Checks the limit of a way. An absent one says nothing.
fn limit(declared: &MessageField<proto::NicLimit>) -> Result<Option<Limit>, LimitError> {
    let Some(declared) = declared.as_ref() else { return Ok(None) };
    let (bytes, packets) = (declared.burst_bytes(), declared.burst_packets());
    Limit::new(declared.bits(), declared.packets(), bytes, packets).map(Some)
}

/// Limits as they are echoed: absent if there are none, which the original's clients expect.
pub fn limits(limits: &Limits, waits: Option<u64>) -> Option<proto::NicLimits> {
    let number = |number: u64| (number > 0).then_some(number);
    let way = |limit: &Limit| {
        (!limit.is_none()).then(|| proto::NicLimit {
            bits: number(limit.bits()),
            packets: number(limit.packets()),
            burst_bytes: number(limit.burst_bytes()),
            burst_packets: number(limit.burst_packets()),
            ..Default::default()
        })
    };
    (*limits != Limits::default()).then(|| proto::NicLimits {
        in_: way(&limits.from_guest).into(),
        out: way(&limits.to_guest).into(),
        waits,
        ..Default::default()
    })
}

/// The network namespace of a TAP device.
pub fn netns(kind: &Kind) -> Option<String> {
    if let Kind::Tap { netns } = kind { netns.as_ref().map(ToString::to_string) } else { None }
}

/// Checks how packets are to be written.
fn trace_options(options: &proto::TraceOptions) -> Result<TraceOptions, Failure> {
    const LEAST: u64 = 1 << 16;
    const MOST_FILES: u32 = 1000;
    let bad = refused("Bad packet trace options");
    if options.snap_length() > 65_535 {
        return Err(bad(&"snap_length is 0 to 65535"));
    }
    if options.file_size != Some(0) && options.file_size.is_some_and(|size| size < LEAST) {
        return Err(bad(&format_args!(
            "file_size is 0, or {LEAST} and more: a file holds several packets"
        )));
    }
    if options.file_count() > MOST_FILES {
        return Err(bad(&format_args!("file_count is {MOST_FILES} at most")));
    }
    if options.file_count() > 1 && options.file_size() == 0 {
        return Err(bad(&"file_count needs file_size: when the next file begins"));
    }
    Ok(TraceOptions {
        filter: options.filter().to_owned(),
        snap_length: options.snap_length(),
        file_size: options.file_size(),
        file_count: options.file_count.filter(|count| *count > 0),
    })
}

fn echoed(options: &TraceOptions) -> Option<proto::TraceOptions> {
    (*options != TraceOptions::default()).then(|| proto::TraceOptions {
        filter: (!options.filter.is_empty()).then(|| options.filter.clone()),
        snap_length: (options.snap_length > 0).then_some(options.snap_length),
        file_size: (options.file_size > 0).then_some(options.file_size),
        file_count: options.file_count,
        ..Default::default()
    })
}

/// The type of a vnic in messages.
pub fn nic_type(kind: &Kind) -> proto::nic::Type {
    match kind {
        Kind::VhostUser { role: Role::Server, .. } => proto::nic::Type::VHOST_USER_SERVER,
        Kind::VhostUser { role: Role::Client, .. } => proto::nic::Type::VHOST_USER_CLIENT,
        Kind::Tap { .. } => proto::nic::Type::TAP,
        Kind::Bench(_) => proto::nic::Type::BENCH,
    }
}

/// Checks the declaration of a security group.
pub fn security_group(declared: &proto::Sg) -> Result<SecurityGroup, Failure> {
    let bad = refused("Bad Security Group format");
    let name = GroupName::new(declared.id()).map_err(|error| bad(&error))?;
    let rules: Result<Vec<Rule>, _> = declared.rule.iter().map(read_rule).collect();
    let rules = rules.map_err(|error| bad(&error))?;
    let prefixes = declared.member_prefix.iter();
    prefixes.clone().try_for_each(|text| Prefix::parse(text).map(drop).map_err(|it| bad(&it)))?;
    let members = declared.member.iter().chain(prefixes);
    SecurityGroup::new(name, members, rules).map_err(|error| bad(&error))
}

/// Checks the name of a security group that is made by its first rule or member.
pub fn group_name(name: &str) -> Result<GroupName, Failure> {
    GroupName::new(name).map_err(|error| refused("Bad Security Group format")(&error))
}

/// Checks an address that is one end of a session, or a tunnel endpoint.
pub fn address(text: &str) -> Result<IpAddr, Failure> {
    parse_ip(text).map_err(|error| refused("Bad IP format")(&error))
}

/// Checks a member of a group: an address or a prefix.
pub fn member(text: &str) -> Result<Member, Failure> {
    Member::parse(text).map_err(|error| refused("Bad IP format")(&error))
}

/// Checks the number of a network.
pub fn network(vni: u32) -> Result<Vni, Failure> {
    Vni::new(vni).map_err(|error| Failure::new(error.to_string()))
}

/// Checks a tunnel endpoint, and the network that it is named for.
pub fn peer(peer: &proto::TunnelPeer) -> Result<TunnelPeer, Failure> {
    let (address, vni) = (address(peer.address())?, peer.vni.map(network).transpose()?);
    TunnelPeer::new(address, vni).map_err(refusal)
}

/// A tunnel endpoint as it is echoed.
pub fn peer_details(peer: TunnelPeer) -> proto::TunnelPeer {
    proto::TunnelPeer {
        address: Some(canonical(peer.address())),
        vni: peer.vni().map(|vni| vni.number()),
        ..Default::default()
    }
}

/// Checks the declaration of a network. One without a number is none.
pub fn declared_network(declared: &proto::Network) -> Result<Network, Failure> {
    let told = |error: &dyn Display| Failure::new(error.to_string());
    let number = declared.vni.ok_or_else(|| told(&"a network needs its VNI"))?;
    let read = |declared: &proto::Subnet| {
        let Some(cidr) = declared.cidr.as_ref() else {
            return Err(told(&format_args!("a subnet of network {number} has no block: set cidr")));
        };
        let cidr = Cidr::new(cidr.address(), cidr.mask_size()).map_err(|error| told(&error))?;
        let gateway = declared.gateway.as_deref().map(parse_ip).transpose();
        let gateway = gateway.map_err(|error| told(&error))?;
        Subnet::new(cidr, gateway).map_err(|error| told(&error))
    };
    let subnets = declared.subnet.iter().map(read).collect::<Result<_, _>>()?;
    let network =
        Network::new(network(number)?, subnets, declared.mtu).map_err(|error| told(&error))?;
    let network = network.with_public(declared.public());
    match declared.dhcp.as_ref() {
        Some(terms) => network.with_dhcp(Some(dhcp(declared, terms)?)),
        None if declared.dns.is_empty() && declared.search.is_empty() => Ok(network),
        None => Err(DhcpError::NotTold(network.vni())),
    }
    .map_err(|error| told(&error))
}

/// Checks what a network tells by DHCP.
fn dhcp(declared: &proto::Network, terms: &proto::Dhcp) -> Result<Dhcp, Failure> {
    let told = |error: &dyn Display| Failure::new(error.to_string());
    let address = |text: &str| parse_ip(text).map_err(|error| told(&error));
    let dns = declared.dns.iter().map(|text| address(text)).collect::<Result<Vec<_>, _>>()?;
    let next_server = terms.next_server.as_deref().map(address).transpose()?;
    let route = |declared: &proto::DhcpRoute| {
        let cidr = declared.cidr.as_ref().ok_or_else(|| told(&"a route has no block: set cidr"))?;
        let cidr = Cidr::new(cidr.address(), cidr.mask_size()).map_err(|error| told(&error))?;
        DhcpRoute::new(cidr, address(declared.via())?).map_err(|error| told(&error))
    };
    let routes = terms.route.iter().map(route).collect::<Result<Vec<_>, _>>()?;
    let dhcp = Dhcp::new(terms.lease).and_then(|dhcp| dhcp.with_dns(&dns));
    let dhcp = dhcp.and_then(|dhcp| dhcp.with_search(&declared.search));
    let dhcp = dhcp.and_then(|dhcp| dhcp.with_boot(next_server, terms.boot_file.as_deref()));
    dhcp.and_then(|dhcp| dhcp.with_routes(&routes)).map_err(|error| told(&error))
}

fn dhcp_details(dhcp: &Dhcp) -> proto::Dhcp {
    let route = |route: &DhcpRoute| proto::DhcpRoute {
        cidr: MessageField::some(cidr_details(&route.to())),
        via: Some(canonical(route.via())),
        ..Default::default()
    };
    proto::Dhcp {
        lease: Some(dhcp.lease()),
        next_server: dhcp.next_server().map(|server| server.to_string()),
        boot_file: dhcp.boot_file().map(str::to_owned),
        route: dhcp.routes().iter().map(route).collect(),
        ..Default::default()
    }
}

/// A network as it is echoed. Given back as a declaration, it changes nothing.
pub fn network_details(network: &Network) -> proto::Network {
    let subnet = |subnet: &Subnet| proto::Subnet {
        cidr: MessageField::some(cidr_details(&subnet.cidr())),
        gateway: subnet.gateway().map(canonical),
        ..Default::default()
    };
    let dhcp = network.dhcp();
    proto::Network {
        vni: Some(network.vni().number()),
        subnet: network.subnets().iter().map(subnet).collect(),
        dns: dhcp.map_or(Vec::new(), |dhcp| dhcp.dns().iter().map(|ip| ip.to_string()).collect()),
        search: dhcp.map_or(Vec::new(), |dhcp| dhcp.search().to_vec()),
        mtu: network.mtu().map(u32::from),
        dhcp: dhcp.map(dhcp_details).into(),
        public: network.is_public().then_some(true),
        ..Default::default()
    }
}

/// Checks the declaration of a router. Refuses a network that is named twice, and an attachment
/// that names another router.
pub fn router(declared: &proto::Router) -> Result<Router, Failure> {
    let id = RouterId::new(declared.id()).map_err(|error| Failure::new(error.to_string()))?;
    let mut router = Router::new(id);
    for declared in &declared.attachment {
        let (place, given) = attachment(declared)?;
        if declared.router.as_deref().is_some_and(|other| other != router.id().as_str()) {
            let text = format!("an attachment of it is of router {:?}", declared.router());
            return Err(Failure::new(text).with_help("leave that out, or name the same router"));
        }
        let name = place.to_string();
        if attach(&mut router, place, given).is_some() {
            return Err(Failure::new(format!("it is attached to {name} twice"))
                .with_help("name the network once, with all addresses"));
        }
    }
    for declared in &declared.route {
        let route = route(declared)?;
        if declared.router.as_deref().is_some_and(|other| other != router.id().as_str()) {
            let text = format!("a route of it is of router {:?}", declared.router());
            return Err(Failure::new(text).with_help("leave that out, or name the same router"));
        }
        if let Some(before) = router.add_route(route) {
            return Err(Failure::new(format!("it has a route to {} twice", before.to()))
                .with_help("name the block once, with all machines that lead there"));
        }
    }
    Ok(router)
}

/// Checks a route: the block, and the machines that lead there.
pub fn route(declared: &proto::Route) -> Result<Route, Failure> {
    let via = declared.via.iter().map(|via| parse_ip(via));
    let via = via.collect::<Result<_, _>>().map_err(|error| Failure::new(error.to_string()))?;
    Route::new(block_of(declared)?, via).map_err(|error| Failure::new(error.to_string()))
}

/// Checks the block of a route.
pub fn route_block(declared: &proto::Route) -> Result<Cidr, Failure> {
    let route = Route::new(block_of(declared)?, Vec::new());
    route.map(|route| route.to()).map_err(|error| Failure::new(error.to_string()))
}

fn block_of(declared: &proto::Route) -> Result<Cidr, Failure> {
    let Some(cidr) = declared.cidr.as_ref() else {
        return Err(Failure::new("a route needs the block that it leads to: set cidr"));
    };
    let cidr = Cidr::new(cidr.address(), cidr.mask_size());
    cidr.map_err(|error| Failure::new(error.to_string()))
}

/// A router as it is echoed. Given back as a declaration, it changes nothing.
pub fn router_details(router: &Router) -> proto::Router {
    let attachment = |(vni, given): (Vni, RouterAddresses)| proto::Attachment {
        vni: Some(vni.number()),
        address: given.texts(),
        ..Default::default()
    };
    let outside = router.externals().map(|(id, given)| proto::Attachment {
        external: Some(id.as_str().to_owned()),
        address: given.texts(),
        ..Default::default()
    });
    let route = |route: &Route| proto::Route {
        cidr: MessageField::some(cidr_details(&route.to())),
        via: route.via().iter().copied().map(canonical).collect(),
        ..Default::default()
    };
    proto::Router {
        id: Some(router.id().as_str().to_owned()),
        attachment: router.attachments().map(attachment).chain(outside).collect(),
        route: router.routes().map(route).collect(),
        ..Default::default()
    }
}

/// A network or an external, to which a router is attached.
pub enum Joined {
    Network(Vni),
    External(ExternalId),
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(vni) => write!(f, "network {vni}"),
            Self::External(id) => write!(f, "external {:?}", id.as_str()),
        }
    }
}

/// Attaches a router. Returns its addresses there before, if it was attached.
pub fn attach(router: &mut Router, to: Joined, given: RouterAddresses) -> Option<RouterAddresses> {
    match to {
        Joined::Network(vni) => router.attach(vni, given),
        Joined::External(id) => router.attach_external(id, given),
    }
}

/// Checks an attachment: the network or external, and the addresses there.
pub fn attachment(declared: &proto::Attachment) -> Result<(Joined, RouterAddresses), Failure> {
    let given = RouterAddresses::parse(&declared.address);
    Ok((joined(declared)?, given.map_err(|error| Failure::new(error.to_string()))?))
}

/// Checks the network or the external of an attachment.
pub fn joined(declared: &proto::Attachment) -> Result<Joined, Failure> {
    match (declared.vni, declared.external.as_deref()) {
        (Some(vni), None) => network(vni).map(Joined::Network),
        (None, Some(id)) => external_id(id).map(Joined::External),
        (None, None) => {
            Err(Failure::new("an attachment needs the VNI of its network, or an external"))
        }
        (Some(_), Some(_)) => {
            Err(Failure::new("an attachment is to a network or to an external, and names both"))
        }
    }
}

/// Checks the name of an external.
fn external_id(id: &str) -> Result<ExternalId, Failure> {
    ExternalId::new(id).map_err(|error| Failure::new(error.to_string()))
}

/// Checks the declaration of an external. Without a VNI it gets that which `number` chooses for its
/// id.
pub fn external(
    declared: &proto::External,
    number: impl FnOnce(&str) -> Result<Vni, Refused>,
) -> Result<External, Failure> {
    let told = |error: &dyn Display| Failure::new(error.to_string());
    let id = external_id(declared.id())?;
    let wire = declared.uplink.as_deref().map(WireDevice::parse).transpose();
    let wire = wire.map_err(|error| told(&error))?;
    if let Some(host) = &declared.via {
        let host = parse_ip(host).map_err(|error| told(&error))?;
        let beside = [
            (wire.is_some(), "an uplink"),
            (declared.vlan.is_some(), "a VLAN"),
            (!declared.address.is_empty(), "addresses"),
            (!declared.gateway.is_empty(), "gateways"),
            (declared.vni.is_some() && !declared.chosen(), "a VNI"),
        ];
        if let Some((_, other)) = beside.into_iter().find(|(has, _)| *has) {
            return Err(told(&ExternalError::ViaAnd(id, other)));
        }
        let vni = match declared.vni {
            Some(vni) => network(vni)?,
            None => number(declared.id()).map_err(refusal)?,
        };
        let made = External::over(id, vni, host, declared.mtu);
        return made.map_err(|error| told(&error));
    }
    if wire.is_none() && declared.vni.is_none() {
        return Err(told(&ExternalError::NoWayOut(id)));
    }
    if wire.is_none() && declared.vlan.is_some() {
        return Err(told(&ExternalError::VlanWithoutWire(id)));
    }
    let (vni, chosen) = match declared.vni {
        Some(vni) => (network(vni)?, declared.chosen()),
        None => (number(declared.id()).map_err(refusal)?, true),
    };
    let made = External::parse(id, vni, &declared.address, &declared.gateway);
    let made = made.and_then(|external| match wire {
        Some(wire) => external.with_wire(wire, declared.vlan),
        None => Ok(external),
    });
    let made = made.and_then(|external| external.with_mtu(declared.mtu));
    let made =
        made.and_then(|external| if chosen { external.with_chosen_vni() } else { Ok(external) });
    made.map_err(|error| told(&error))
}

/// An external as it is echoed. Given back as a declaration, it changes nothing.
pub fn external_details(external: &External) -> proto::External {
    proto::External {
        id: Some(external.id().as_str().to_owned()),
        uplink: external.wire().map(WireDevice::to_string),
        vlan: external.vlan().map(u32::from),
        vni: Some(external.vni().number()),
        address: external.addresses().iter().map(Cidr::to_string).collect(),
        gateway: external.gateways().map(canonical).collect(),
        mtu: external.network().mtu().map(u32::from),
        chosen: (!external.is_provider()).then_some(true),
        via: external.via().map(canonical),
        ..Default::default()
    }
}

/// Checks a translation, its router and its external.
pub fn nat(declared: &proto::Nat) -> Result<NatRule, Failure> {
    let told = |error: &dyn Display| Failure::new(error.to_string());
    let router = RouterId::new(declared.router()).map_err(|error| told(&error))?;
    let external = external_id(declared.external())?;
    let address = |text: &Option<String>, name: &str| {
        let text = text.as_deref().ok_or_else(|| told(&format_args!("a translation needs {name}")));
        parse_ip(text?).map_err(|error| told(&error))
    };
    let outside = address(&declared.address, "its address outside: set address")?;
    let inside = || address(&declared.inside, "the machine inside: set inside");
    let kind = declared.kind.ok_or_else(|| told(&"a translation needs its kind"))?;
    let kind = kind.enum_value();
    let ports = [declared.protocol, declared.port, declared.to_port];
    if ports.iter().any(Option::is_some) && kind != Ok(proto::nat::Kind::FORWARD) {
        return Err(told(&"a translation of a whole address has no protocol and no ports"));
    }
    let nat = match kind {
        Ok(proto::nat::Kind::SNAT) if declared.inside.is_some() => {
            return Err(told(&"an address by which many leave leads to no single machine"));
        }
        Ok(proto::nat::Kind::SNAT) => Nat::snat(outside),
        Ok(proto::nat::Kind::FLOATING) => Nat::floating(outside, inside()?),
        Ok(proto::nat::Kind::FORWARD) => {
            let (protocol, port) = forwarded(declared)?;
            let to_port = declared.to_port.map_or(Ok(port), self::port)?;
            let ends = (end(outside, port)?, end(inside()?, to_port)?);
            Nat::forward(protocol, ends.0, ends.1)
        }
        Err(number) => return Err(told(&format_args!("there is no translation of kind {number}"))),
    };
    Ok(NatRule { router, external, nat: nat.map_err(|error| told(&error))? })
}

fn forwarded(declared: &proto::Nat) -> Result<(ForwardProtocol, u16), Failure> {
    let protocol = match declared.protocol {
        Some(6) => ForwardProtocol::Tcp,
        Some(17) => ForwardProtocol::Udp,
        Some(other) => {
            return Err(Failure::new(NatError::Protocol(other.to_string()).to_string()));
        }
        None => return Err(Failure::new("a forwarded port needs its protocol: 6 or 17")),
    };
    Ok((protocol, port(declared.port.unwrap_or(0))?))
}

fn port(port: u32) -> Result<u16, Failure> {
    let fits = u16::try_from(port).ok().filter(|port| *port > 0);
    fits.ok_or_else(|| Failure::new(NatError::Port(port).to_string()))
}

fn end(address: IpAddr, port: u16) -> Result<SocketAddrV4, Failure> {
    match address {
        IpAddr::V4(v4) => Ok(SocketAddrV4::new(v4, port)),
        IpAddr::V6(_) => Err(Failure::new(NatError::FourOnly(address).to_string())),
    }
}

/// Reads what a translation has of its external: its address, and maybe a port.
pub fn nat_place(declared: &proto::Nat) -> Result<(ExternalId, NatPlace), Failure> {
    let address = parse_ip(declared.address()).map_err(|error| Failure::new(error.to_string()))?;
    let forwards = declared.protocol.is_some() || declared.port.is_some();
    let port = if forwards { Some(forwarded(declared)?) } else { None };
    Ok((external_id(declared.external())?, (address, port)))
}

/// Returns whether a translation is one that may be meant by its place: of this router and kind, if
/// these are said.
pub fn may_be(declared: &proto::Nat, router: &RouterId, nat: &Nat) -> bool {
    let router = declared.router.as_deref().is_none_or(|other| other == router.as_str());
    router && declared.kind.is_none_or(|kind| kind == kind_of(nat).into())
}

fn kind_of(nat: &Nat) -> proto::nat::Kind {
    match nat {
        Nat::Floating { .. } => proto::nat::Kind::FLOATING,
        Nat::Snat { .. } => proto::nat::Kind::SNAT,
        Nat::Forward { .. } => proto::nat::Kind::FORWARD,
    }
}

/// A translation as it is echoed. Given back as a declaration, it changes nothing.
pub fn nat_details(rule: &NatRule) -> proto::Nat {
    let (protocol, port, to_port) = match rule.nat {
        Nat::Forward { protocol, port, to_port, .. } => {
            (Some(protocol.number().into()), Some(port.into()), Some(to_port.into()))
        }
        _ => (None, None, None),
    };
    proto::Nat {
        router: Some(rule.router.as_str().to_owned()),
        kind: Some(kind_of(&rule.nat).into()),
        external: Some(rule.external.as_str().to_owned()),
        address: Some(canonical(rule.nat.outside())),
        inside: rule.nat.inside().map(canonical),
        protocol,
        port,
        to_port,
        ..Default::default()
    }
}

/// Checks the declaration of a neighbour.
pub fn neighbour(declared: &proto::Neighbour) -> Result<Neighbour, Failure> {
    let (address, mac) = (declared.address(), declared.mac());
    let neighbour =
        Neighbour::parse(network_of_neighbour(declared)?, address, mac, declared.host.as_deref());
    neighbour.map_err(|error| Failure::new(error.to_string()))
}

/// Reads the network and the address of a neighbour.
pub fn neighbour_place(declared: &proto::Neighbour) -> Result<(Vni, IpAddr), Failure> {
    let address = parse_ip(declared.address());
    let address = address.map_err(|error| Failure::new(error.to_string()))?;
    Ok((network_of_neighbour(declared)?, address))
}

fn network_of_neighbour(declared: &proto::Neighbour) -> Result<Vni, Failure> {
    let vni = declared.vni.ok_or_else(|| Failure::new("a neighbour needs the VNI of its network"));
    vni.and_then(network)
}

/// A neighbour as it is echoed. Given back as a declaration, it changes nothing.
pub fn neighbour_details(neighbour: &Neighbour) -> proto::Neighbour {
    proto::Neighbour {
        vni: Some(neighbour.vni().number()),
        address: Some(canonical(neighbour.address())),
        mac: Some(neighbour.mac().text().to_owned()),
        host: neighbour.host().map(canonical),
        ..Default::default()
    }
}

fn cidr_details(cidr: &Cidr) -> proto::Cidr {
    proto::Cidr {
        address: Some(canonical(cidr.address())),
        mask_size: Some(cidr.mask_size().into()),
        ..Default::default()
    }
}

/// A security group as it is echoed.
pub fn group_details(group: &SecurityGroup) -> proto::Sg {
    let (prefixes, addresses): (Vec<Member>, _) =
        group.members().iter().partition(|member| matches!(member, Member::Prefix(_)));
    let texts = |members: Vec<Member>| members.iter().map(Member::to_string).collect();
    proto::Sg {
        id: Some(group.name().as_str().to_owned()),
        member: texts(addresses),
        member_prefix: texts(prefixes),
        rule: group.rules().map(rule_details).collect(),
        ..Default::default()
    }
}

/// A rule as it is echoed: without ports where they mean nothing.
pub fn rule_details(rule: &Rule) -> proto::Rule {
    let (cidr, group) = match rule.peer() {
        Peer::Cidr(cidr) => (Some(cidr), None),
        Peer::SecurityGroup(group) => (None, Some(group)),
    };
    let cidr = cidr.map(cidr_details);
    let direction = match rule.direction() {
        Direction::Inbound => proto::rule::Direction::INBOUND,
        Direction::Outbound => proto::rule::Direction::OUTBOUND,
    };
    proto::Rule {
        direction: Some(direction.into()),
        protocol: Some(match rule.protocol() {
            Protocol::Any => -1,
            Protocol::Number(number) => number.into(),
        }),
        port_start: rule.ports().map(|ports| (*ports.start()).into()),
        port_end: rule.ports().map(|ports| (*ports.end()).into()),
        cidr: cidr.into(),
        security_group: group.map(|group| group.as_str().to_owned()),
        ..Default::default()
    }
}

/// Checks a rule that is added or removed alone.
pub fn rule(declared: &proto::Rule) -> Result<Rule, Failure> {
    read_rule(declared).map_err(|error| match error {
        RuleRefused::Rule(RuleError::NoPeer) => refused("Internal error")(&error),
        _ => refused("Bad Security Group rule format")(&error),
    })
}

#[derive(Debug, thiserror::Error)]
enum RuleRefused {
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    Cidr(#[from] butterfly_model::CidrError),
    #[error(transparent)]
    Group(#[from] butterfly_model::GroupNameError),
    #[error("direction {0} is neither INBOUND nor OUTBOUND")]
    Direction(i32),
}

fn read_rule(declared: &proto::Rule) -> Result<Rule, RuleRefused> {
    let direction = match declared.direction.unwrap_or_default().enum_value() {
        Ok(proto::rule::Direction::INBOUND) => Direction::Inbound,
        Ok(proto::rule::Direction::OUTBOUND) => Direction::Outbound,
        Err(number) => return Err(RuleRefused::Direction(number)),
    };
    let cidr = declared
        .cidr
        .as_ref()
        .map(|cidr| Cidr::new(cidr.address(), cidr.mask_size()))
        .transpose()?;
    let group = declared.security_group.as_deref().map(GroupName::new).transpose()?;
    Ok(Rule::new(
        direction,
        declared.protocol(),
        (declared.port_start, declared.port_end),
        cidr,
        group,
    )?)
}
