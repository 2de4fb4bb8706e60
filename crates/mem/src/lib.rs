//! Memory and processor, as the packet path uses them: tables of atomics by pairs of cache lines,
//! in huge pages where there are some; texts that outlive the process; a black box; memory and
//! descriptors that stay over execve(); prefetching, AES rounds, the cycle counter.
//!
//! Knows nothing of guests, rings or packets. Guest memory is in `vhost`.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "Butterfly runs on Linux on x86-64 only: its rings rely on that processor's order of memory, and its cycle counter"
);

pub mod blackbox;
pub mod cpu;
pub mod execute;
pub mod halves;
pub mod linger;
pub mod units;
pub mod words;
