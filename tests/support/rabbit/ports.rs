//! Ports for a node.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

/// Below the ports that systems hand out by themselves, so that no outgoing connection takes one while a node is down.
const FIRST: u16 = 20_000;
const LAST: u16 = 32_000;
const BLOCK: u16 = 5;

/// The ports of one node, on the loopback interface.
///
/// The first of the block is bound by the process of the tests for as long as the block is in use: so two processes
/// never take the same block, and a process that dies leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Ports {
    _claim: TcpListener,
    pub(crate) amqp: u16,
    pub(crate) amqps: u16,
    pub(crate) management: u16,
    pub(crate) distribution: u16,
}

impl Ports {
    /// Takes a block in which all ports are free, from a random place on.
    pub(crate) fn claim() -> Result<Self, String> {
        let blocks = (LAST - FIRST) / BLOCK;
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(blocks);
        let start = u16::try_from(start).expect("less than the count of blocks");
        (0..blocks)
            .map(|step| FIRST + (start + step) % blocks * BLOCK)
            .find_map(Self::claim_block)
            .ok_or_else(|| format!("no {BLOCK} free ports in a row from {FIRST} to {LAST}"))
    }

    fn claim_block(first: u16) -> Option<Self> {
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        let claim = bind(first)?;
        for port in first + 1..first + BLOCK {
            bind(port)?;
        }
        Some(Self {
            _claim: claim,
            amqp: first + 1,
            amqps: first + 2,
            management: first + 3,
            distribution: first + 4,
        })
    }
}
