//! A delivery in the hands of a loop, which cannot be forgotten.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::ordering::{Ordering, Place};
use crate::handler::HandlerError;
use crate::message::Message;
use crate::source::Delivery;

/// A delivery that has no answer yet. Whatever drops it without one (a panic, an aborted task, an early return) leaves
/// it in the [`LostDeliveries`], from where the supervisor puts the message back.
pub(super) struct Held<'a, R> {
    pub(super) message: Message,
    /// Taken by the answer.
    receipt: Option<R>,
    lost: &'a LostDeliveries<R>,
    /// Among those with its key, where the consumer keeps an order.
    pub(super) place: Option<Place<'a>>,
    /// Why it cannot be handled, where that was clear before.
    pub(super) refused: Option<HandlerError>,
}

impl<'a, R> Held<'a, R> {
    pub(super) fn new(delivery: Delivery<R>, lost: &'a LostDeliveries<R>) -> Self {
        Self { message: delivery.message, receipt: Some(delivery.receipt), lost, place: None, refused: None }
    }

    pub(super) fn line_up(&mut self, ordering: &'a Ordering) {
        match ordering.line_up(&self.message) {
            Ok(place) => self.place = place,
            Err(error) => self.refused = Some(error),
        }
    }

    /// `None` only once it was taken.
    pub(super) fn receipt(&self) -> Option<&R> {
        self.receipt.as_ref()
    }

    /// Takes the receipt out, for the answer.
    pub(super) fn take_receipt(&mut self) -> Option<R> {
        self.receipt.take()
    }
}

impl<R> Drop for Held<'_, R> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.lost.add(Delivery { message: self.message.clone(), receipt });
        }
    }
}

/// Deliveries that were dropped without an answer and wait for the supervisor. Each loop holds one at a time, so there
/// are few.
pub(super) struct LostDeliveries<R> {
    deliveries: Mutex<Vec<Delivery<R>>>,
    added: Notify,
}

impl<R> LostDeliveries<R> {
    pub(super) fn new() -> Self {
        Self { deliveries: Mutex::new(Vec::new()), added: Notify::new() }
    }

    fn add(&self, delivery: Delivery<R>) {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
        self.added.notify_one();
    }

    pub(super) fn take_all(&self) -> Vec<Delivery<R>> {
        std::mem::take(&mut *self.deliveries.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until something was added since the last call returned.
    pub(super) async fn added(&self) {
        self.added.notified().await;
    }
}
