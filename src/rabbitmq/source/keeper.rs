//! The life of a source: one task opens its channel, consumes, hands back, notices what ends it, and begins again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::buffer::{Stage, Waiting};
use super::moves;
use super::receipt::RabbitReceipt;
use super::running::Running;
use super::session::Session;
use super::window::Answer;
use super::{Release, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::event::RabbitEvent;

/// How long a consumer must have stood for the loss of it to be no reason to wait.
const STEADY: Duration = Duration::from_secs(10);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    releases: mpsc::Receiver<Release>,
    /// How often in a row a consumer could not be set up, or was lost soon.
    failures: u32,
    /// Nothing is to be consumed before somebody receives.
    resting: bool,
    /// What is buffered is to go back as soon as nothing is in hand.
    held: bool,
    seed: u64,
}

/// What came of something that can be interrupted.
enum Waited<T> {
    Done(T),
    /// What was buffered is to go back, and nothing to come. Where nothing is consumed that is done at once.
    Rest,
    Stop,
}

/// How the time with one channel ended.
enum End {
    /// The source was closed.
    Stopped,
    /// Nothing is in hand, and nobody receives.
    Rested,
    /// The channel is gone, or its consumer.
    Lost(Error),
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, releases: mpsc::Receiver<Release>) -> Self {
        Self {
            shared,
            releases,
            failures: 0,
            resting: true,
            held: false,
            seed: Uuid::new_v4().as_u64_pair().0,
        }
    }

    pub(super) async fn run(mut self) {
        let over = self.keep().await.err().unwrap_or_else(|| Error::new(ErrorKind::Closed, "receive"));
        self.shared.buffer.end(over);
        if let Some(own) = &self.shared.own {
            own.let_go(&self.shared.rabbit).await;
        }
    }

    /// Until the source is closed, or its connection will not come back, which is an error.
    async fn keep(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        loop {
            if self.resting {
                match self.rest().await? {
                    Waited::Done(()) => {
                        self.resting = false;
                        shared.buffer.set_stage(Stage::SettingUp(None));
                    }
                    Waited::Rest => continue,
                    Waited::Stop => return Ok(()),
                }
            }
            let live = match self.interruptible(shared.rabbit.consume().live()).await {
                Waited::Done(live) => live?,
                Waited::Rest => continue,
                Waited::Stop => return Ok(()),
            };
            // One that is dropped half-way gives its channel back.
            match self.interruptible(Running::set_up(&shared, live)).await {
                Waited::Done(Ok(running)) => {
                    if !self.serve_to_the_end(running).await {
                        return Ok(());
                    }
                }
                Waited::Done(Err(error)) => self.refused(error.clone(), Stage::SettingUp(Some(error))),
                Waited::Rest => continue,
                Waited::Stop => return Ok(()),
            }
            if let Waited::Stop = self.wait().await {
                return Ok(());
            }
        }
    }

    /// Until somebody receives. A queue of the source's own is kept meanwhile: it is made again on the next connection, so
    /// that nobody else takes it and what is sent to it finds it.
    async fn rest(&mut self) -> Result<Waited<()>> {
        let shared = Arc::clone(&self.shared);
        let Some(own) = &shared.own else { return Ok(self.interruptible(shared.buffer.wanted()).await) };
        let live = match self.interruptible(shared.rabbit.consume().live()).await {
            Waited::Done(live) => live?,
            Waited::Rest => return Ok(Waited::Rest),
            Waited::Stop => return Ok(Waited::Stop),
        };
        match self.interruptible(own.declare(&shared.rabbit, &live)).await {
            Waited::Done(Ok(_)) => self.failures = 0,
            Waited::Done(Err(error)) => {
                self.refused(error.clone(), Stage::Unclaimed(error));
                return Ok(self.wait_out().await);
            }
            Waited::Rest => return Ok(Waited::Rest),
            Waited::Stop => return Ok(Waited::Stop),
        }
        shared.buffer.claimed();
        // Only waits are lost here: that somebody wants to receive stays noted.
        let wanted = async {
            tokio::select! {
                biased;
                () = live.gone().cancelled() => Waited::Rest,
                () = shared.buffer.wanted() => Waited::Done(()),
            }
        };
        Ok(match self.interruptible(wanted).await {
            Waited::Done(waited) => waited,
            Waited::Rest => Waited::Rest,
            Waited::Stop => Waited::Stop,
        })
    }

    /// Waits for as long as the next try must wait, whoever releases meanwhile.
    async fn wait_out(&mut self) -> Waited<()> {
        let shared = Arc::clone(&self.shared);
        let clock = shared.rabbit.clock();
        let until = clock.now() + self.delay();
        loop {
            let left = until.saturating_duration_since(clock.now());
            match self.interruptible(clock.sleep(left)).await {
                Waited::Done(()) => return Waited::Rest,
                Waited::Rest => {}
                Waited::Stop => return Waited::Stop,
            }
        }
    }

    /// Does `work`, unless the source is closed or released first; then `work` is dropped.
    async fn interruptible<T>(&mut self, work: impl Future<Output = T>) -> Waited<T> {
        // `work` only waits, or gives back what it has when it is dropped.
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => Waited::Stop,
            Some(Release(answer)) = self.releases.recv() => {
                self.resting = true;
                self.shared.buffer.set_stage(Stage::Released);
                // Whoever asked may have gone.
                let _ = answer.send(());
                Waited::Rest
            }
            done = work => Waited::Done(done),
        }
    }

    /// Waits before the next set-up: not at all after the loss of a consumer that had stood for a while.
    async fn wait(&mut self) -> Waited<()> {
        if self.failures == 0 || self.resting {
            return Waited::Done(());
        }
        let sleep = self.shared.rabbit.clock().sleep(self.delay());
        self.interruptible(sleep).await
    }

    fn delay(&self) -> Duration {
        self.shared.rabbit.consume().settings().backoff.delay(self.failures, self.seed)
    }

    /// A consumer could not be set up, or its queue not be made.
    fn refused(&mut self, error: Error, stage: Stage) {
        self.failures = self.failures.saturating_add(1);
        self.shared.buffer.set_stage(stage);
        let (queue, delay) = (self.shared.options.queue.clone(), self.delay());
        self.shared.rabbit.events().tell(RabbitEvent::SetUpRefused { queue, error, delay });
    }

    /// Serves one channel from its consumer's confirmation to its end; false when the source was closed.
    async fn serve_to_the_end(&mut self, mut running: Running) -> bool {
        let shared = Arc::clone(&self.shared);
        let queue = &shared.options.queue;
        shared.rabbit.events().tell(RabbitEvent::Consuming { queue: queue.clone() });
        let began = shared.rabbit.clock().now();
        let end = self.serve(&mut running).await;
        let steady = shared.rabbit.clock().now().saturating_duration_since(began) >= STEADY;
        match end {
            End::Stopped => {
                running
                    .end(Error::new(ErrorKind::Closed, "receive").with_message("the source was closed"))
                    .await;
                return false;
            }
            End::Rested => {
                self.resting = true;
                running.end(Error::new(ErrorKind::Stale, "settle").with_message("the source rests")).await;
                shared.buffer.end_session(Stage::Released, None);
            }
            End::Lost(error) => {
                self.failures = if steady { 0 } else { self.failures.saturating_add(1) };
                self.resting = self.held || !running.consumes();
                running.end(error.clone()).await;
                let stage =
                    if self.resting { Stage::Released } else { Stage::SettingUp(Some(error.clone())) };
                shared.buffer.end_session(stage, Some(error.clone()));
                shared.rabbit.events().tell(RabbitEvent::ConsumerLost { queue: queue.clone(), error });
            }
        }
        true
    }

    async fn serve(&mut self, running: &mut Running) -> End {
        self.held = false;
        loop {
            if let Err(end) = self.step(running).await {
                return end;
            }
        }
    }

    /// Waits for the next thing to do with a channel, and does it; the error is how the channel ends.
    async fn step(&mut self, running: &mut Running) -> Result<(), End> {
        let shared = Arc::clone(&self.shared);
        let session = Arc::clone(running.session());
        let rests = self.held || !running.consumes();
        // Each branch only waits, or takes deliveries in one step.
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => Err(End::Stopped),
            Some(Release(answer)) = self.releases.recv() => {
                let released = self.release(running).await;
                // Whoever asked may have gone, and is not told of an end.
                let _ = answer.send(());
                released
            }
            error = session.ended() => Err(End::Lost(error)),
            () = shared.buffer.wanted(), if rests => self.resume(running).await,
            () = session.none_in_hand(), if self.held => Err(End::Rested),
            came = running.next(), if running.consumes() => {
                self.add(&session, came.map_err(End::Lost)?);
                Ok(())
            }
        }
    }

    async fn release(&mut self, running: &mut Running) -> Result<(), End> {
        if self.shared.options.single_active && running.consumes() {
            self.held = true;
            self.shared.buffer.set_stage(Stage::Held);
            return Ok(());
        }
        // What is not requeued goes back with the channel.
        let shared = Arc::clone(&self.shared);
        unless_stopped(&shared, self.hand_back(running)).await
    }

    async fn resume(&mut self, running: &mut Running) -> Result<(), End> {
        if !self.held {
            // A consumer that was asked for goes with the channel.
            unless_stopped(&self.shared, running.consume(&self.shared)).await?;
        }
        self.held = false;
        self.shared.buffer.consuming(running.session());
        Ok(())
    }

    fn add(&self, session: &Arc<Session>, deliveries: Vec<Waiting>) {
        let (readable, unreadable): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|waiting| waiting.unreadable.is_none());
        self.shared.buffer.add(readable);
        for Waiting { tag, message, unreadable } in unreadable {
            let Some(cause) = unreadable else { continue };
            let receipt = RabbitReceipt::new(Arc::clone(session), tag, message);
            self.shared.rabbit.source_tasks().spawn(moves::give_up(Arc::clone(&self.shared), receipt, cause));
        }
    }

    /// Cancels the consumer and requeues what nobody has received. The channel stays, for what is in hand.
    async fn hand_back(&self, running: &mut Running) -> Result<()> {
        let buffered = self.shared.buffer.release();
        let late = running.cancel(&self.shared).await?;
        let session = running.session();
        // An answer that cannot be given leaves the message with the broker, where it belongs.
        join_all(
            buffered.into_iter().chain(late).map(|waiting| session.settle(waiting.tag, Answer::Requeue)),
        )
        .await;
        Ok(())
    }
}

/// Does `work` unless the source is closed first. Its error ends the channel.
async fn unless_stopped(shared: &Shared, work: impl Future<Output = Result<()>>) -> Result<(), End> {
    // The channel ends then, and with it what is lost here.
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => Err(End::Stopped),
        done = work => done.map_err(End::Lost),
    }
}

/// However the task ends, by a panic too: nobody waits for it in vain.
impl Drop for Keeper {
    fn drop(&mut self) {
        let gone = Error::new(ErrorKind::Other, "receive").with_message("the task of the source has gone");
        // Only where nothing was said yet.
        self.shared.buffer.end(gone.with_transient(false));
        self.shared.done.cancel();
    }
}
