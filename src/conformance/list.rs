//! The one list of all cases, and what is made of it: the tests of an adapter, and a list to run from.

use std::fmt;

use futures::future::BoxFuture;

use super::harness::Harness;
use super::trial::run;
use super::violation::Violation;

/// The list. `$then` is a macro of this crate that is given its arguments and then all cases.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($then:ident $($arguments:tt)*) => {
        $crate::$then! {
            $($arguments)*
            content::a_body_of_any_bytes_arrives_as_it_was_sent,
            content::a_message_without_a_body_arrives_with_its_headers,
            content::a_body_of_one_mebibyte_arrives_whole,
            content::every_type_of_header_arrives_as_it_was_sent,
            content::many_headers_arrive,
            content::the_id_and_the_properties_arrive,
            content::properties_that_were_not_set_stay_unset,
            delivery::the_capabilities_are_those_declared,
            delivery::the_queue_has_a_name,
            delivery::an_empty_queue_delivers_nothing,
            delivery::a_first_delivery_is_the_first_attempt,
            delivery::how_a_message_came_is_not_sent_on,
            delivery::the_time_of_receipt_is_when_it_was_received,
            delivery::a_waiting_receive_gets_what_is_published_later,
            delivery::messages_come_in_the_order_of_publishing,
            delivery::a_message_in_hand_is_given_to_nobody_else,
            delivery::concurrent_receivers_get_each_message_once,
            delivery::two_sources_get_each_message_once_between_them,
            settling::an_acked_message_never_comes_back,
            settling::closing_right_after_an_ack_undoes_nothing,
            settling::settling_out_of_order_settles_that_one_alone,
            settling::a_receipt_settles_nothing_of_another_source,
            settling::a_requeued_message_comes_back_at_once,
            settling::a_requeued_message_is_known_to_have_been_delivered_before,
            settling::a_requeued_message_takes_the_declared_place,
            settling::a_receipt_of_a_closed_source_is_refused,
            retry::a_retry_without_a_delay_comes_back_at_once,
            retry::a_retry_comes_back_when_its_delay_is_over,
            retry::every_retry_of_a_message_waits_for_its_delay,
            retry::a_long_delay_does_not_hold_up_a_shorter_one,
            retry::a_delayed_message_holds_up_nobody,
            retry::a_delay_outlives_its_source,
            retry::a_retried_message_is_the_same_message,
            attempts::a_counted_retry_adds_one_to_the_attempt,
            attempts::a_delayed_retry_adds_one_to_the_attempt,
            attempts::an_uncounted_retry_keeps_the_attempt,
            attempts::a_requeue_keeps_the_attempt,
            attempts::closing_the_source_keeps_the_attempt,
            attempts::dropping_the_source_keeps_the_attempt,
            attempts::a_cut_keeps_the_attempt,
            attempts::an_expired_lease_keeps_the_attempt,
            attempts::a_release_keeps_the_attempt,
            dead_letter::a_dead_lettered_message_never_comes_back,
            dead_letter::a_dead_letter_keeps_the_message,
            dead_letter::a_dead_letter_bears_its_cause,
            dead_letter::a_message_given_up_twice_bears_the_second_cause,
            dead_letter::dead_lettering_one_message_leaves_the_others,
            lease::a_delivery_comes_back_when_its_lease_ends,
            lease::extending_begins_the_lease_anew,
            lease::an_extended_delivery_can_be_settled,
            lease::settling_after_the_lease_is_stale,
            cut::a_cut_brings_back_what_was_not_settled,
            cut::an_ack_after_a_cut_is_stale_and_acks_nothing,
            cut::a_nack_after_a_cut_is_stale_and_does_nothing,
            cut::an_extend_after_a_cut_is_stale,
            cut::a_source_goes_on_after_a_cut,
            cancel::a_receive_that_is_cancelled_already_takes_nothing,
            cancel::a_waiting_receive_returns_when_it_is_cancelled,
            cancel::cancelling_one_receive_leaves_the_others,
            cancel::a_dropped_receive_loses_no_message,
            cancel::a_cancelled_receive_loses_no_message,
            release::release_hands_back_what_was_buffered,
            release::release_leaves_received_deliveries_alone,
            release::a_receive_after_release_pulls_again,
            release::a_release_with_nothing_buffered_is_harmless,
            close::a_closed_source_gives_back_what_was_not_settled,
            close::a_dropped_source_gives_back_what_was_not_settled,
            close::closing_twice_is_harmless,
            close::several_tasks_may_close_at_once,
            close::an_unused_source_can_be_closed,
            close::a_waiting_receive_ends_when_the_source_is_closed,
            close::a_receive_after_close_is_refused,
            close::the_health_tells_open_from_closed,
            erased::an_erased_source_behaves_the_same,
            erased::a_shared_source_behaves_the_same,
        }
    };
}

/// Makes one `#[tokio::test]` for each case of the [conformance suite](crate::conformance), on the given
/// [`Harness`](crate::conformance::Harness).
///
/// What follows the harness goes to `#[tokio::test]`, where the cases need a runtime of more than one thread:
/// `conformance_tests!(MyHarness, flavor = "multi_thread")`. Put calls for several harnesses into modules of their own.
/// The module has a [whole example](crate::conformance).
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty $(, $($option:tt)+)?) => {
        $crate::__conformance_cases! { __conformance_tests ($harness) ($($($option)+)?) }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($harness:ty) $options:tt $($topic:ident :: $case:ident,)+) => {
        $(
            #[::tokio::test $options]
            async fn $case() {
                let promise = $crate::conformance::run::<$harness, _>(stringify!($case), |trial| {
                    ::std::boxed::Box::pin($crate::conformance::$topic::$case(trial))
                });
                if let ::std::result::Result::Err(violation) = promise.await {
                    panic!("{violation}");
                }
            }
        )+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    (($harness:ty) $($topic:ident :: $case:ident,)+) => {
        vec![$(
            Case {
                name: stringify!($case),
                topic: stringify!($topic),
                run: || {
                    Box::pin(run::<$harness, _>(stringify!($case), |trial| {
                        Box::pin(super::$topic::$case(trial))
                    }))
                },
            },
        )+]
    };
}

/// One case of the suite on one harness.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    topic: &'static str,
    run: fn() -> BoxFuture<'static, Result<(), Violation>>,
}

impl Case {
    /// The name, which is the promise as a sentence.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The module that the case is in.
    pub fn topic(&self) -> &'static str {
        self.topic
    }

    /// Runs the case on a harness of its own.
    ///
    /// # Errors
    ///
    /// The promise that was broken, or the step of the harness that failed.
    ///
    /// # Cancel safety
    ///
    /// Dropped in the middle, the harness is not torn down.
    pub async fn run(&self) -> Result<(), Violation> {
        (self.run)().await
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.topic, self.name)
    }
}

/// All cases on the harness `H`, for those who run them by other means than
/// [`conformance_tests!`](crate::conformance_tests).
pub fn cases<H: Harness>() -> Vec<Case> {
    crate::__conformance_cases! { __conformance_list (H) }
}
