//! Names, numbers, types and labels of every field that clients of revision 6 know: a row each, and
//! no field without a row.

use butterfly_api::proto;
use protobuf::{
    Enum, MessageFull,
    descriptor::field_descriptor_proto::{Label, Type},
    reflect::MessageDescriptor,
};

/// Numbers of our own begin here.
const OURS: i32 = 100;

/// Fields of every message, as in its definition.
const MESSAGES: &str = "
proto.Messages
  repeated proto.Message messages = 1
  optional Encrypted encrypted = 2
proto.Message
  required uint32 revision = 1
  optional proto.Error error = 2
  optional MessageV0 message_0 = 3
proto.Error
  optional proto.Error.Code code = 1
Encrypted
  optional Encrypted.Error error = 1
  optional bytes aes256cbc_sha512 = 2
Encrypted.Error
  optional Encrypted.Error.Code code = 1
MessageV0
  optional Request request = 1
  optional Response response = 2
  optional string message_id = 3
MessageV0.Error
  optional string description = 1
  optional int32 err_no = 2
  optional string file = 3
  optional uint64 line = 4
  optional uint32 curs_pos = 5
  optional string function = 6
Request
  optional Nic nic_add = 1
  optional NicUpdateReq nic_update = 2
  optional string nic_del = 3
  optional bool nic_list = 4
  optional string nic_details = 5
  optional string nic_export = 6
  optional string nic_stats = 7
  optional Sg sg_add = 8
  optional string sg_del = 9
  optional bool sg_list = 10
  optional SgRuleAddReq sg_rule_add = 11
  optional SgRuleDelReq sg_rule_del = 12
  optional string sg_rule_list = 13
  optional SgMemberAddReq sg_member_add = 14
  optional SgMemberDelReq sg_member_del = 15
  optional string sg_member_list = 16
  optional bool app_status = 17
  optional bool app_quit = 18
  optional AppConfigReq app_config = 19
  optional string sg_details = 20
Response
  required Status status = 1
  optional NicAddRes nic_add = 2
  repeated string nic_list = 3
  repeated Nic nic_details = 4
  optional NicExportRes nic_export = 5
  optional NicStats nic_stats = 6
  repeated string sg_list = 7
  repeated Rule sg_rule_list = 8
  repeated string sg_member_list = 9
  optional AppStatusRes app_status = 10
  repeated Sg sg_details = 11
Status
  required bool status = 1
  optional MessageV0.Error error = 2
Nic
  required string id = 1
  required string mac = 2
  required uint32 vni = 3
  repeated string ip = 4
  repeated string security_group = 5
  optional bool ip_anti_spoof = 6
  optional string sniff_target_nic_id = 7
  optional bool bypass_filtering = 8
  optional Nic.Type type = 9
  optional string path = 10
  optional bool packet_trace = 11
  optional string packet_trace_path = 12
  optional string btype = 13
  optional string dip = 14
  optional string dmac = 15
NicUpdateReq
  required string id = 1
  optional bool ip_anti_spoof = 2
  repeated string ip = 3
  repeated string security_group = 4
  optional bool packet_trace = 5
  optional string packet_trace_path = 6
NicAddRes
  optional string path = 1
NicExportRes
  optional FwData fw_data = 1
FwData
  optional bytes data = 1
NicStats
  required uint64 in = 1
  required uint64 out = 2
Cidr
  required string address = 1
  required uint32 mask_size = 2
Sg
  required string id = 1
  repeated string member = 2
  repeated Rule rule = 3
Rule
  required Rule.Direction direction = 1
  required int32 protocol = 2
  optional uint32 port_start = 3
  optional uint32 port_end = 4
  optional Cidr cidr = 5
  optional string security_group = 6
SgRuleAddReq
  required string sg_id = 1
  required Rule rule = 2
SgRuleDelReq
  required string sg_id = 1
  required Rule rule = 2
SgMemberAddReq
  required string sg_id = 1
  required string member = 2
SgMemberDelReq
  required string sg_id = 1
  required string member = 2
AppStatusRes
  optional uint64 start_date = 1
  optional uint64 current_date = 2
  optional uint64 request_counter = 3
  optional string graph_dot = 4
AppConfigReq
  optional string log_level = 1
";

fn messages() -> [MessageDescriptor; 26] {
    use proto::*;
    [
        Messages::descriptor(),
        Message::descriptor(),
        Error::descriptor(),
        Encrypted::descriptor(),
        encrypted::Error::descriptor(),
        MessageV0::descriptor(),
        message_v0::Error::descriptor(),
        Request::descriptor(),
        Response::descriptor(),
        Status::descriptor(),
        Nic::descriptor(),
        NicUpdateReq::descriptor(),
        NicAddRes::descriptor(),
        NicExportRes::descriptor(),
        FwData::descriptor(),
        NicStats::descriptor(),
        Cidr::descriptor(),
        Sg::descriptor(),
        Rule::descriptor(),
        SgRuleAddReq::descriptor(),
        SgRuleDelReq::descriptor(),
        SgMemberAddReq::descriptor(),
        SgMemberDelReq::descriptor(),
        AppStatusRes::descriptor(),
        AppConfigReq::descriptor(),
        Sealed::descriptor(),
    ]
}

/// The definition of a message as in [`MESSAGES`], without our own fields.
fn definition(message: &MessageDescriptor) -> String {
    let mut fields: Vec<_> = message.fields().filter(|field| field.number() < OURS).collect();
    fields.sort_by_key(protobuf::reflect::FieldDescriptor::number);
    let mut text = format!("{}\n", message.full_name());
    for field in fields {
        let proto = field.proto();
        let label = match proto.label() {
            Label::LABEL_OPTIONAL => "optional",
            Label::LABEL_REQUIRED => "required",
            Label::LABEL_REPEATED => "repeated",
        };
        let kind = match proto.type_() {
            Type::TYPE_BOOL => "bool",
            Type::TYPE_BYTES => "bytes",
            Type::TYPE_INT32 => "int32",
            Type::TYPE_STRING => "string",
            Type::TYPE_UINT32 => "uint32",
            Type::TYPE_UINT64 => "uint64",
            Type::TYPE_ENUM | Type::TYPE_MESSAGE => proto.type_name().trim_start_matches('.'),
            other => panic!("{}: {other:?}", field.full_name()),
        };
        text += &format!("  {label} {kind} {} = {}\n", field.name(), field.number());
    }
    text
}

#[test]
fn every_field_is_as_clients_know_it() {
    let mut rows = MESSAGES.trim_start().split_inclusive('\n').peekable();
    let mut known = 0;
    while let Some(name) = rows.next() {
        let mut expected = name.to_owned();
        while let Some(row) = rows.next_if(|row| row.starts_with(' ')) {
            expected += row;
        }
        let messages = messages();
        let message = messages
            .iter()
            .find(|message| message.full_name() == name.trim())
            .unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(definition(message), expected);
        known += 1;
    }
    assert_eq!(known, messages().len() - 1, "all but Sealed, which is ours");
}

/// No field of ours is required: a client that does not know it would be refused.
#[test]
fn ours_are_optional() {
    for message in messages() {
        for field in message.fields().filter(|field| field.number() >= OURS) {
            assert!(!field.is_required(), "{}", field.full_name());
        }
    }
}

#[test]
fn enumerations_have_their_numbers() {
    use proto::{encrypted, error, nic, rule};
    fn numbers<E: Enum>() -> Vec<i32> {
        E::VALUES.iter().map(E::value).filter(|number| *number < OURS).collect()
    }
    let name = |number| encrypted::error::Code::from_i32(number).map(|code| format!("{code:?}"));
    assert_eq!(
        [0, 1, 2].map(|number| name(number).unwrap()),
        ["NOT_SUPPORTED", "REJECTED", "INTERNAL_ERROR"]
    );
    for (number, code) in [
        (0, "PARSE_ERROR"),
        (1, "INTERNAL_ERROR"),
        (2, "VERSION_NOT_MANAGED"),
        (3, "EMPTY_REQUEST"),
        (4, "REJECTED"),
    ] {
        assert_eq!(format!("{:?}", error::Code::from_i32(number).unwrap()), code);
    }
    for (number, kind) in [(0, "VHOST_USER_SERVER"), (1, "TAP"), (2, "BENCH")] {
        assert_eq!(format!("{:?}", nic::Type::from_i32(number).unwrap()), kind);
    }
    for (number, direction) in [(0, "INBOUND"), (1, "OUTBOUND")] {
        assert_eq!(format!("{:?}", rule::Direction::from_i32(number).unwrap()), direction);
    }
    assert_eq!(numbers::<encrypted::error::Code>(), [0, 1, 2]);
    assert_eq!(numbers::<error::Code>(), [0, 1, 2, 3, 4]);
    assert_eq!(numbers::<nic::Type>(), [0, 1, 2]);
    assert_eq!(numbers::<rule::Direction>(), [0, 1]);
    assert_eq!(butterfly_api::REVISION, 6);
}
