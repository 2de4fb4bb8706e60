//! A front end in this process: attached without a socket in the file system.

mod control_support;

use std::sync::Arc;

use butterfly_guest_driver::{Connection, Vm, VmConfig};
use butterfly_vhost::{control::Device, net::Features, port::Port};

use control_support::{Events, WAIT, echo};

#[test]
fn it_attaches_and_its_last_word_is_the_reason() {
    let (port, events) = (Arc::new(Port::default()), Arc::new(Events::default()));
    let (device, stream, farewell) =
        Device::start_inside("inside", port.clone(), Features::OFFERED, events.clone()).unwrap();
    assert!(device.status().socket.is_none() && device.status().attached.is_none());
    let mut vm = Vm::attach(Connection::new(stream).unwrap(), &VmConfig::default()).unwrap();
    let frame = [7u8; 60];
    vm.guest.send(&frame, Default::default()).unwrap();
    assert_eq!(echo(&port), 1);
    assert_eq!(vm.guest.recv_wait(WAIT).unwrap().unwrap().1, frame);
    assert!(device.status().attached.is_some());

    farewell.say("the cable was cut");
    vm.crash();
    assert_eq!(events.detached(1), "the cable was cut");
    let status = device.status();
    assert!(status.attached.is_none());
    assert_eq!(status.last_detach.unwrap().reason, "the cable was cut");
    assert_eq!(status.trouble.as_deref(), Some("the cable was cut"), "nobody else can come");
    device.stop();
}

#[test]
fn a_device_that_stops_detaches_it() {
    let (port, events) = (Arc::new(Port::default()), Arc::new(Events::default()));
    let (device, stream, _farewell) =
        Device::start_inside("inside", port, Features::OFFERED, events.clone()).unwrap();
    let vm = Vm::attach(Connection::new(stream).unwrap(), &VmConfig::default()).unwrap();
    device.stop();
    assert_eq!(events.detached(1), "the vnic was removed");
    assert!(vm.connection.wait_closed(WAIT));
}
