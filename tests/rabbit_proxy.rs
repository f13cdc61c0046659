//! The proxy that the fault tests put in front of a broker: each fault, byte by byte.

#![cfg(feature = "rabbitmq")]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::unwrap_used)]

#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::clock::{Clock, SystemClock};

use rabbit::{Direction, Proxy, bounded};

use Direction::{ToBroker, ToClient};

/// What stands in for the broker, and the proxy in front of it.
struct Line {
    broker: TcpListener,
    proxy: Proxy,
}

impl Line {
    async fn new() -> Self {
        let broker = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(broker.local_addr().unwrap().port());
        Self { broker, proxy }
    }

    async fn client(&self) -> std::io::Result<TcpStream> {
        bounded("connect", TcpStream::connect((Ipv4Addr::LOCALHOST, self.proxy.port()))).await
    }

    /// The client's end and the broker's.
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = self.client().await.unwrap();
        let (broker, _) = bounded("accept", self.broker.accept()).await.unwrap();
        (client, broker)
    }
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    bounded("send", stream.write_all(bytes)).await.unwrap();
}

/// Reads exactly this.
async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    bounded("read", stream.read_exact(&mut read)).await.unwrap();
    assert_eq!(read, bytes);
}

/// All that comes until the stream ends, and how it ends: `None` in order.
async fn rest(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut read = Vec::new();
    let end = bounded("read to the end", stream.read_to_end(&mut read)).await;
    (read, end.err().map(|error| error.kind()))
}

const RESET: Option<ErrorKind> = Some(ErrorKind::ConnectionReset);

#[tokio::test]
async fn bytes_go_through_in_both_directions_and_are_counted() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    send(&mut client, b"hello").await;
    expect(&mut broker, b"hello").await;
    send(&mut broker, b"yes").await;
    expect(&mut client, b"yes").await;
    let counts = line.proxy.until(|counts| counts.to_client == 3).await;
    assert_eq!((counts.accepted, counts.open(), counts.to_broker, counts.lost), (1, 1, 5, 0));

    drop(client);
    assert_eq!(rest(&mut broker).await, (vec![], None));
    drop(broker);
    line.proxy.until(|counts| counts.open() == 0).await;
}

#[tokio::test]
async fn an_end_of_one_side_is_passed_on_and_the_other_direction_goes_on() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    send(&mut client, b"last").await;
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut broker).await, (b"last".to_vec(), None));
    send(&mut broker, b"answer").await;
    expect(&mut client, b"answer").await;
}

#[tokio::test]
async fn a_reset_of_one_side_is_passed_on() {
    let line = Line::new().await;
    let (mut client, broker) = line.connect().await;
    broker.set_zero_linger().unwrap();
    drop(broker);
    assert_eq!(rest(&mut client).await, (vec![], RESET));
}

#[tokio::test]
async fn a_cut_resets_all_connections_and_later_ones_are_whole() {
    let line = Line::new().await;
    let mut first = line.connect().await;
    let mut second = line.connect().await;
    line.proxy.cut().await;
    assert_eq!(line.proxy.counts().open(), 0);
    for end in [&mut first.0, &mut first.1, &mut second.0, &mut second.1] {
        assert_eq!(rest(end).await, (vec![], RESET));
    }

    let (mut client, mut broker) = line.connect().await;
    send(&mut client, b"hello").await;
    expect(&mut broker, b"hello").await;
    assert_eq!(line.proxy.counts().accepted, 3);
}

#[tokio::test]
async fn a_close_ends_all_connections_in_order() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    line.proxy.close().await;
    assert_eq!(rest(&mut client).await, (vec![], None));
    assert_eq!(rest(&mut broker).await, (vec![], None));
}

#[tokio::test]
async fn a_cut_after_so_many_bytes_passes_on_exactly_those() {
    let line = Line::new().await;
    for count in 1..=5 {
        let (mut client, mut broker) = line.connect().await;
        send(&mut client, b"before").await;
        expect(&mut broker, b"before").await;
        line.proxy.cut_after(count, ToBroker);
        send(&mut client, b"01234").await;
        let (read, end) = rest(&mut broker).await;
        assert_eq!((read.as_slice(), end), (&b"01234"[..usize::try_from(count).unwrap()], RESET));
        assert_eq!(rest(&mut client).await, (vec![], RESET));
    }
    // Over several chunks, and in the other direction.
    let (mut client, mut broker) = line.connect().await;
    line.proxy.cut_after(5, ToClient);
    send(&mut broker, b"abc").await;
    expect(&mut client, b"abc").await;
    send(&mut client, b"not counted").await;
    expect(&mut broker, b"not counted").await;
    send(&mut broker, b"defg").await;
    assert_eq!(rest(&mut client).await, (b"de".to_vec(), RESET));
}

#[tokio::test]
async fn a_cut_after_no_bytes_comes_with_the_next() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    line.proxy.cut_after(0, ToBroker);
    send(&mut broker, b"hello").await;
    expect(&mut client, b"hello").await;
    send(&mut client, b"x").await;
    assert_eq!(rest(&mut broker).await, (vec![], RESET));
    line.proxy.until(|counts| counts.open() == 0 && counts.lost == 1).await;
}

#[tokio::test]
async fn swallowed_bytes_are_gone_and_the_connection_stays() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    line.proxy.swallow(ToBroker, true);
    send(&mut client, b"gone").await;
    line.proxy.until(|counts| counts.lost == 4).await;
    send(&mut broker, b"hello").await;
    expect(&mut client, b"hello").await;
    line.proxy.swallow(ToBroker, false);
    send(&mut client, b"there").await;
    expect(&mut broker, b"there").await;
}

#[tokio::test]
async fn an_end_is_swallowed_too() {
    let line = Line::new().await;
    let (client, mut broker) = line.connect().await;
    line.proxy.swallow(ToBroker, true);
    drop(client);
    // Nor does the broker hear that there is nobody left to send to.
    line.proxy.swallow(ToClient, true);
    send(&mut broker, b"anyone").await;
    line.proxy.until(|counts| counts.lost == 6).await;
    assert_eq!(line.proxy.counts().open(), 1);
    line.proxy.swallow(ToBroker, false);
    assert_eq!(rest(&mut broker).await, (vec![], None));
}

#[tokio::test]
async fn new_connections_are_swallowed_as_well() {
    let line = Line::new().await;
    line.proxy.swallow(ToBroker, true);
    let (mut client, _broker) = line.connect().await;
    send(&mut client, b"gone").await;
    let counts = line.proxy.until(|counts| counts.lost == 4).await;
    assert_eq!((counts.open(), counts.to_broker), (1, 0));
}

#[tokio::test]
async fn stalled_bytes_come_later() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    line.proxy.stall(ToBroker, true);
    send(&mut client, b"later").await;
    client.shutdown().await.unwrap();
    send(&mut broker, b"hello").await;
    expect(&mut client, b"hello").await;
    assert_eq!(line.proxy.counts().to_broker, 0);
    line.proxy.stall(ToBroker, false);
    assert_eq!(rest(&mut broker).await, (b"later".to_vec(), None));
}

#[tokio::test]
async fn a_half_close_ends_one_direction_of_the_connections_that_are_there() {
    for stalled in [false, true] {
        let line = Line::new().await;
        let (mut client, mut broker) = line.connect().await;
        line.proxy.stall(ToClient, stalled);
        line.proxy.half_close(ToClient);
        assert_eq!(rest(&mut client).await, (vec![], None));
        send(&mut broker, b"gone").await;
        line.proxy.until(|counts| counts.lost == 4).await;
        send(&mut client, b"hello").await;
        expect(&mut broker, b"hello").await;

        line.proxy.stall(ToClient, false);
        let (mut client, mut broker) = line.connect().await;
        send(&mut broker, b"hello").await;
        expect(&mut client, b"hello").await;
    }
}

#[tokio::test]
async fn a_delay_holds_bytes_up() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    let delay = Duration::from_millis(150);
    line.proxy.delay(ToBroker, delay);
    let sent = SystemClock.now();
    send(&mut client, b"slow").await;
    expect(&mut broker, b"slow").await;
    assert!(SystemClock.now() - sent >= delay);
    line.proxy.delay(ToBroker, Duration::ZERO);
    send(&mut client, b"fast").await;
    expect(&mut broker, b"fast").await;
}

#[tokio::test]
async fn a_closed_port_refuses_connections_and_keeps_those_that_are_there() {
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    for _ in 0..3 {
        line.proxy.refuse(true).await;
        assert_eq!(line.client().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        line.proxy.refuse(false).await;
        line.connect().await;
    }
    send(&mut client, b"hello").await;
    expect(&mut broker, b"hello").await;
}

#[tokio::test]
async fn a_hang_up_ends_a_connection_that_was_accepted() {
    let line = Line::new().await;
    line.proxy.hang_up(true);
    let mut client = line.client().await.unwrap();
    assert_eq!(rest(&mut client).await, (vec![], None));
    line.proxy.until(|counts| counts.accepted == 1 && counts.open() == 0).await;
    line.proxy.hang_up(false);
    line.connect().await;
}

#[tokio::test]
async fn a_client_of_a_broker_that_is_away_is_reset() {
    let Line { broker, proxy } = Line::new().await;
    drop(broker);
    let mut client =
        bounded("connect", TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))).await.unwrap();
    assert_eq!(rest(&mut client).await, (vec![], RESET));
}

#[tokio::test]
async fn a_dropped_proxy_takes_its_connections_its_port_and_its_tasks_along() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let line = Line::new().await;
    let (mut client, mut broker) = line.connect().await;
    let port = line.proxy.port();
    drop(line);
    assert_eq!(rest(&mut client).await, (vec![], None));
    assert_eq!(rest(&mut broker).await, (vec![], None));
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    rabbit::until("its tasks end", || async { (tasks() == before).then_some(()) }).await;
}
