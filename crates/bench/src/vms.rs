//! VMs by their number: 0 and 1 are the A and the B of the first pair, 2 and 3 of the second.

use std::net::Ipv4Addr;

use butterfly_packet::Mac;

/// Returns the VM that one exchanges frames with: VMs 0 and 1, 2 and 3, and so on.
pub fn peer(vm: usize) -> usize {
    vm ^ 1
}

/// Returns whether it is the A of its pair, from whose side flows begin.
pub fn is_client(vm: usize) -> bool {
    vm.is_multiple_of(2)
}

/// A VM's addresses.
pub fn mac(vm: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, 1 + vm as u8])
}

/// A VM's addresses.
pub fn ip(vm: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 1 + vm as u8)
}
