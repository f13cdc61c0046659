//! Carries the bytes of one connection of the proxy.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use windlass::clock::{Clock, SystemClock};

use super::proxy::{Controls, Direction, End, Flow, Lane, Shared};

/// Carries bytes in both directions until both have ended, or the connection is cut.
pub(super) async fn carry(
    shared: &Shared,
    client: &mut TcpStream,
    broker: &mut TcpStream,
    seen: Controls,
) -> End {
    let (from_client, to_client) = client.split();
    let (from_broker, to_broker) = broker.split();
    let pump = |direction, from, to| Pump {
        shared,
        direction,
        controls: shared.controls.subscribe(),
        half_closes: seen.lane(direction).half_closes,
        from,
        to,
    };
    let to_broker = pump(Direction::ToBroker, from_client, to_broker);
    let to_client = pump(Direction::ToClient, from_broker, to_client);
    // Bytes that are under way when the connection is cut are meant to be lost.
    tokio::select! {
        biased;
        end = cut(shared, seen.cuts.0) => end,
        ended = async { tokio::try_join!(to_broker.run(), to_client.run()) } => match ended {
            Ok(_) => End::Close,
            Err(end) => end,
        },
    }
}

/// Waits until all connections are ended once more.
async fn cut(shared: &Shared, seen: u64) -> End {
    let mut controls = shared.controls.subscribe();
    let changed = controls.wait_for(|controls| controls.cuts.0 != seen).await;
    changed.map_or(End::Reset, |controls| controls.cuts.1)
}

/// One direction of one connection.
struct Pump<'a> {
    shared: &'a Shared,
    direction: Direction,
    controls: watch::Receiver<Controls>,
    half_closes: u64,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
}

impl Pump<'_> {
    /// `Ok` when the stream has ended and that was passed on; `Err` when the connection must end at once.
    async fn run(mut self) -> Result<(), End> {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let half_closes = self.half_closes;
            let closed = move |lane: Lane| lane.half_closes != half_closes;
            let lane = self.until(|lane| lane.flow != Flow::Stall || closed(lane)).await?;
            if closed(lane) {
                return self.discard(&mut buffer).await;
            }
            // Reading takes nothing unless it wins, and a change is looked at again at the top.
            let read = tokio::select! {
                biased;
                _ = self.controls.changed() => continue,
                read = self.from.read(&mut buffer) => read,
            };
            match read {
                Ok(0) => {
                    self.until(|lane| lane.flow == Flow::Forward).await?;
                    let _ = self.to.shutdown().await;
                    return Ok(());
                }
                Ok(count) => self.deliver(&buffer[..count]).await?,
                Err(_) => {
                    self.until(|lane| lane.flow == Flow::Forward).await?;
                    return Err(End::Reset);
                }
            }
        }
    }

    /// Waits until the controls of this direction are as `wanted`.
    async fn until(&mut self, wanted: impl Fn(Lane) -> bool) -> Result<Lane, End> {
        let direction = self.direction;
        let controls = self.controls.wait_for(|controls| wanted(controls.lane(direction))).await;
        Ok(controls.map_err(|_| End::Reset)?.lane(direction))
    }

    async fn deliver(&mut self, bytes: &[u8]) -> Result<(), End> {
        let delay = self.controls.borrow().lane(self.direction).delay;
        if !delay.is_zero() {
            SystemClock.sleep(delay).await;
        }
        if self.until(|lane| lane.flow != Flow::Stall).await?.flow == Flow::Swallow {
            self.lost(bytes.len());
            return Ok(());
        }
        let (allowed, last) = self.shared.spend(self.direction, bytes.len());
        let written = self.to.write_all(&bytes[..allowed]).await;
        self.shared.counts.send_modify(|counts| *counts.forwarded(self.direction) += allowed as u64);
        if last {
            self.lost(bytes.len() - allowed);
            self.shared.end_all(End::Reset);
            return Err(End::Reset);
        }
        written.map_err(|_| End::Reset)
    }

    /// Ends the stream to the receiver, and throws away what still comes.
    async fn discard(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        let _ = self.to.shutdown().await;
        loop {
            match self.from.read(buffer).await {
                Ok(0) => return Ok(()),
                Ok(count) => self.lost(count),
                Err(_) => return Err(End::Reset),
            }
        }
    }

    fn lost(&self, bytes: usize) {
        self.shared.counts.send_modify(|counts| counts.lost += bytes as u64);
    }
}
