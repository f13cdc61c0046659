//! A TCP proxy in front of a broker that makes the faults of a network.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::{bounded, pump};

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToBroker,
    ToClient,
}

/// What became of the traffic so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Connections that were accepted, those that were hung up on included.
    pub(crate) accepted: u64,
    /// Bytes passed on to the broker.
    pub(crate) to_broker: u64,
    /// Bytes passed on to the client.
    pub(crate) to_client: u64,
    /// Bytes thrown away.
    pub(crate) lost: u64,
    open: BTreeSet<u64>,
}

impl Counts {
    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    pub(super) fn forwarded(&mut self, direction: Direction) -> &mut u64 {
        match direction {
            Direction::ToBroker => &mut self.to_broker,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Flow {
    #[default]
    Forward,
    Swallow,
    Stall,
}

/// What happens to new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Door {
    #[default]
    Open,
    /// Accepted and closed at once.
    HangUp,
    /// The port is closed.
    Refuse,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum End {
    /// By a reset, as when a process or a firewall kills it.
    #[default]
    Reset,
    /// In order.
    Close,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lane {
    pub(super) flow: Flow,
    pub(super) delay: Duration,
    /// How often this direction was closed: a connection that has seen fewer closes it.
    pub(super) half_closes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Controls {
    door: Door,
    /// How often all connections were ended, and how the last time.
    pub(super) cuts: (u64, End),
    lanes: [Lane; 2],
}

impl Controls {
    pub(super) fn lane(&self, direction: Direction) -> Lane {
        self.lanes[direction as usize]
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) controls: watch::Sender<Controls>,
    pub(super) counts: watch::Sender<Counts>,
    listening: watch::Sender<bool>,
    /// How many bytes are left until the cut, where one is set.
    left: Mutex<[Option<u64>; 2]>,
}

impl Shared {
    /// How many of these bytes may go on, and whether the cut follows.
    pub(super) fn spend(&self, direction: Direction, bytes: usize) -> (usize, bool) {
        let mut left = self.left.lock().unwrap();
        let Some(allowed) = &mut left[direction as usize] else { return (bytes, false) };
        let spent = bytes.min(usize::try_from(*allowed).unwrap_or(usize::MAX));
        *allowed -= spent as u64;
        (spent, *allowed == 0)
    }

    pub(super) fn end_all(&self, end: End) {
        *self.left.lock().unwrap() = [None; 2];
        self.controls.send_modify(|controls| controls.cuts = (controls.cuts.0 + 1, end));
    }
}

/// A TCP proxy on the loopback interface. Dropping it ends its tasks and its connections.
///
/// What is set holds for the connections that are there and for those to come, unless it says otherwise.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy for this port of the loopback interface. It must be started on a tokio runtime, and lives there.
    pub(crate) fn start(port: u16) -> Self {
        // Keeps the port while it is closed.
        let holder = socket(0).expect("there is a free port");
        let own = holder.local_addr().expect("it is bound").port();
        let listener = listen(own).expect("the port is ours");
        let shared = Arc::new(Shared {
            controls: watch::Sender::default(),
            counts: watch::Sender::default(),
            listening: watch::Sender::new(true),
            left: Mutex::default(),
        });
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let task = tokio::spawn(accept(Arc::clone(&shared), holder, listener, target));
        Self { shared, port: own, task }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn counts(&self) -> Counts {
        self.shared.counts.borrow().clone()
    }

    /// Waits until the counts are as `wanted`.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Counts) -> bool) -> Counts {
        let mut counts = self.shared.counts.subscribe();
        let found = bounded("the proxy's counts as the test wants them", counts.wait_for(wanted)).await;
        found.expect("the proxy lives").clone()
    }

    /// Resets all connections that were accepted so far, to both sides. Returns once they are gone.
    pub(crate) async fn cut(&self) {
        self.end(End::Reset).await;
    }

    /// Closes all connections that were accepted so far, in order, to both sides. Returns once they are gone.
    pub(crate) async fn close(&self) {
        self.end(End::Close).await;
    }

    async fn end(&self, end: End) {
        let last = self.counts().accepted;
        self.shared.end_all(end);
        self.until(|counts| counts.open.range(..=last).next().is_none()).await;
    }

    /// Passes exactly so many more bytes on in this direction, over all connections, and then resets all connections.
    /// Once that has happened, later connections are whole again. With 0, the next byte is one too many.
    ///
    /// The receiver gets the bytes before the reset, unless it has left so many unread that they are still here.
    pub(crate) fn cut_after(&self, bytes: u64, direction: Direction) {
        self.shared.left.lock().unwrap()[direction as usize] = Some(bytes);
    }

    /// Takes the bytes of this direction and throws them away; the ends of streams, too. The connections stay open.
    pub(crate) fn swallow(&self, direction: Direction, on: bool) {
        self.flow(direction, if on { Flow::Swallow } else { Flow::Forward });
    }

    /// Takes no more bytes in this direction, until it is off again; none is lost. The connections stay open.
    pub(crate) fn stall(&self, direction: Direction, on: bool) {
        self.flow(direction, if on { Flow::Stall } else { Flow::Forward });
    }

    fn flow(&self, direction: Direction, flow: Flow) {
        self.shared.controls.send_modify(|controls| controls.lanes[direction as usize].flow = flow);
    }

    /// Holds up each chunk of bytes of this direction for so long; the next is read after that. A chunk has up to
    /// 16 KiB.
    pub(crate) fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.controls.send_modify(|controls| controls.lanes[direction as usize].delay = delay);
    }

    /// Ends the stream in this direction for the connections that are there: the receiver sees the end, and what still
    /// comes is thrown away. The other direction goes on.
    pub(crate) fn half_close(&self, direction: Direction) {
        self.shared.controls.send_modify(|controls| controls.lanes[direction as usize].half_closes += 1);
    }

    /// Closes the port, so that new connections are refused, or opens it again. Returns once that is so.
    pub(crate) async fn refuse(&self, on: bool) {
        self.door(if on { Door::Refuse } else { Door::Open });
        let mut listening = self.shared.listening.subscribe();
        let done = listening.wait_for(|listening| *listening != on);
        bounded("the proxy opens or closes its port", done).await.expect("the proxy lives");
    }

    /// Accepts new connections and closes them at once, as a load balancer with nothing behind it does.
    pub(crate) fn hang_up(&self, on: bool) {
        self.door(if on { Door::HangUp } else { Door::Open });
    }

    fn door(&self, door: Door) {
        self.shared.controls.send_modify(|controls| controls.door = door);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It owns the tasks of the connections.
        self.task.abort();
    }
}

/// A socket on this port of the loopback interface, or on a free one for 0.
fn socket(port: u16) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Several may be bound to the port, as long as one of them listens at most.
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    socket(port)?.listen(128)
}

/// Accepts connections for as long as the proxy lives.
async fn accept(shared: Arc<Shared>, holder: TcpSocket, listener: TcpListener, target: SocketAddr) {
    let port = holder.local_addr().expect("it is bound").port();
    let mut listener = Some(listener);
    let mut controls = shared.controls.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let door = controls.borrow_and_update().door;
        match door {
            Door::Refuse => listener = None,
            Door::Open | Door::HangUp if listener.is_none() => {
                listener = Some(listen(port).expect("the port is held"));
            }
            Door::Open | Door::HangUp => {}
        }
        shared.listening.send_replace(listener.is_some());
        // No branch loses anything when another wins: a connection that is not taken here stays in the backlog.
        tokio::select! {
            biased;
            _ = controls.changed() => {}
            Some(_) = connections.join_next() => {}
            Ok((client, _)) = async { listener.as_ref().expect("it is there").accept().await },
                if listener.is_some() => {
                let open = Open::new(&shared);
                if door == Door::Open {
                    let seen = *shared.controls.borrow();
                    connections.spawn(connect(open, client, target, seen));
                }
            }
        }
    }
}

/// One connection that is open. Dropping it says that it is gone.
struct Open {
    shared: Arc<Shared>,
    number: u64,
}

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        let mut number = 0;
        shared.counts.send_modify(|counts| {
            counts.accepted += 1;
            number = counts.accepted;
            counts.open.insert(number);
        });
        Self { shared: Arc::clone(shared), number }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.counts.send_modify(|counts| {
            counts.open.remove(&self.number);
        });
    }
}

/// Carries one connection until it ends. `seen` are the controls when it was accepted.
async fn connect(open: Open, mut client: TcpStream, target: SocketAddr, seen: Controls) {
    let Ok(mut broker) = TcpStream::connect(target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    for stream in [&client, &broker] {
        let _ = stream.set_nodelay(true);
    }
    let end = pump::carry(&open.shared, &mut client, &mut broker, seen).await;
    if end == End::Reset {
        for stream in [&client, &broker] {
            let _ = stream.set_zero_linger();
        }
    }
    // The sockets go first, so that a connection that no longer counts is gone.
    drop((client, broker));
    drop(open);
}
