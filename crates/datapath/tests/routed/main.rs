//! Routers in packet walks: what passes from one network to another, what of it is rewritten, and
//! which drop everything else is.

mod adopted;
mod answered;
mod asks;
mod cuts;
mod dropped;
mod explained;
mod hairpin;
mod hop;
mod hostile;
mod hosts;
mod leases;
mod leases6;
mod moves;
mod nat;
mod nat_fragments;
mod net;
mod outside;
mod prefix;
mod routes;
mod six;
mod walks;
