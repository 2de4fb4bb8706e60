//! Contract of the exact outputs.

use crate::support::{Row, check};

#[test]
fn nic_details() {
    check(&[
        Row {
            line: "nic details nic_1 @",
            asks: &[&["nic_details: \"nic_1\""]],
            answers: &[&[
                "nic_details { id: \"nic_1\" mac: \"42:42:42:42:42:01\" vni: 1337 ip: \"42.0.0.1\" security_group: \"sg\" \
                          type: VHOST_USER_SERVER path: \"/tmp/x\" packet_trace_path: \"/tmp/y\" }",
            ]],
            out: "id: nic_1\nmac: 42:42:42:42:42:01\nvni: 1337\nip: 42.0.0.1\nantispoof: false\n\
                  bypass filtering: false\npacket trace: false\n",
            ..Row::default()
        },
        Row {
            line: "nic details a @",
            asks: &[&["nic_details: \"a\""]],
            answers: &[&[
                "nic_details { id: \"a\" mac: \"42:42:42:42:42:01\" vni: 0 ip: \"42.0.0.1\" ip: \"::1\" ip_anti_spoof: true prefix: \"fd00:1::/64\" \
                          sniff_target_nic_id: \"b\" bypass_filtering: true forwards: true shared_ip: true router: true packet_trace: true \
                          limits { in { packets: 5 burst_packets: 2000 } out { bits: 123 } } }",
            ]],
            out: "id: a\nmac: 42:42:42:42:42:01\nvni: 0\nip: 42.0.0.1\nip: ::1\nprefix: fd00:1::/64\nantispoof: true\nsniff target: b\n\
                  bypass filtering: true\nforwards: true\nshared addresses: true\nrouter: true\n\
                  limit in: 5 packets/s (2k packets at once)\nlimit out: 123 bits/s\npacket trace: true\n",
            ..Row::default()
        },
    ]);
}

#[test]
fn nic_stats() {
    check(&[Row {
        line: "nic stats a @",
        asks: &[&["nic_stats: \"a\""]],
        answers: &[&["nic_stats { in: 1234 out: 18446744073709551615 }"]],
        out: "in: 1234\nout: 18446744073709551615\n",
        ..Row::default()
    }]);
}

#[test]
fn status() {
    check(&[Row {
        line: "status @",
        asks: &[&["app_status: true"]],
        answers: &[&[
            "app_status { start_date: 1700000000 current_date: 1700000042 request_counter: 3 \
                      graph_dot: \"strict graph G {\\n  rankdir=LR\\n}\\n\" }",
        ]],
        out: "start date: 1700000000\ncurrent date: 1700000042\nrequest counter: 3\ndot graph: \nstrict graph G {\n  rankdir=LR\n}\n\n",
        ..Row::default()
    }]);
}
