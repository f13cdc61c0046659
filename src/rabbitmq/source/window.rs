//! Which deliveries of a channel are settled, and with which few frames the broker is told. No waiting, no channel.

use std::collections::VecDeque;

/// What the broker is told of one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// `basic.ack`.
    Ack,
    /// `basic.nack` with the requeue flag.
    Requeue,
    /// `basic.nack` without it: to the queue's own dead-letter exchange, or nowhere.
    Reject,
}

/// One frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) tag: u64,
    pub(super) answer: Answer,
    /// Whether it stands for all tags up to this one too. For acks alone.
    pub(super) multiple: bool,
}

/// What is to be sent, and who waits for it.
#[derive(Debug)]
pub(super) struct Plan<W> {
    /// In this order.
    pub(super) frames: Vec<Frame>,
    /// Those whose answers are among the frames.
    pub(super) waiting: Vec<W>,
}

#[derive(Debug)]
enum Tag<W> {
    /// Delivered, not settled.
    Open,
    /// To be acked, by a frame of its own or with others; `seen` once a plan was made without it.
    Acked { seen: bool, waiter: W },
    /// Its frame is in a plan, or goes into the next.
    Told,
}

/// The tags of one channel from the lowest that is not settled on. RabbitMQ numbers the deliveries of a channel 1, 2, 3.
/// `W` is who waits for an answer to be sent.
#[derive(Debug)]
pub(super) struct Window<W> {
    /// The tag below the first one kept.
    floor: u64,
    tags: VecDeque<Tag<W>>,
    /// Frames for answers that cannot be grouped.
    single: Vec<(Frame, W)>,
}

impl<W> Default for Window<W> {
    fn default() -> Self {
        Self { floor: 0, tags: VecDeque::new(), single: Vec::new() }
    }
}

impl<W> Window<W> {
    /// A delivery came. Those that were passed over on the way count as open: a message of theirs may be anywhere.
    pub(super) fn delivered(&mut self, tag: u64) {
        while self.floor + (self.tags.len() as u64) < tag {
            self.tags.push_back(Tag::Open);
        }
    }

    /// A delivery was settled. `waiter` comes back when it is none of this channel's, or was settled before.
    pub(super) fn settle(&mut self, tag: u64, answer: Answer, waiter: W) -> Result<(), W> {
        let state = tag
            .checked_sub(self.floor + 1)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.tags.get_mut(index));
        let Some(state @ Tag::Open) = state else { return Err(waiter) };
        if answer == Answer::Ack {
            *state = Tag::Acked { seen: false, waiter };
        } else {
            *state = Tag::Told;
            self.single.push((Frame { tag, answer, multiple: false }, waiter));
        }
        Ok(())
    }

    /// What is to be sent now.
    ///
    /// What cannot be grouped goes first, and is no gap then: frames of a channel are read in order. Acks up to the
    /// highest tag below which all is settled go out as one frame. An ack above a gap waits for one more plan, since
    /// the gap is often filled by then, and is sent alone with the next; where there is nothing else to send, at once.
    pub(super) fn plan(&mut self) -> Plan<W> {
        let (mut frames, mut waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.single).into_iter().unzip();
        let (mut acks, mut last) = (0, 0);
        while self.tags.front().is_some_and(|tag| !matches!(tag, Tag::Open)) {
            self.floor += 1;
            if let Some(Tag::Acked { waiter, .. }) = self.tags.pop_front() {
                waiting.push(waiter);
                (acks, last) = (acks + 1, self.floor);
            }
        }
        if acks > 0 {
            frames.push(Frame { tag: last, answer: Answer::Ack, multiple: acks > 1 });
        }
        let idle = frames.is_empty();
        for (tag, state) in (self.floor + 1..).zip(&mut self.tags) {
            match state {
                Tag::Acked { seen: seen @ false, .. } if !idle => *seen = true,
                Tag::Acked { .. } => {
                    if let Tag::Acked { waiter, .. } = std::mem::replace(state, Tag::Told) {
                        waiting.push(waiter);
                    }
                    frames.push(Frame { tag, answer: Answer::Ack, multiple: false });
                }
                Tag::Open | Tag::Told => {}
            }
        }
        Plan { frames, waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Frame, Window};

    fn window(tags: u64) -> Window<()> {
        let mut window = Window::default();
        (1..=tags).for_each(|tag| window.delivered(tag));
        window
    }

    fn frames(window: &mut Window<()>) -> Vec<Frame> {
        window.plan().frames
    }

    fn ack_all(window: &mut Window<()>, tags: &[u64]) -> bool {
        tags.iter().all(|tag| window.settle(*tag, Answer::Ack, ()).is_ok())
    }

    fn ack(tag: u64, multiple: bool) -> Frame {
        Frame { tag, answer: Answer::Ack, multiple }
    }

    #[test]
    fn what_is_settled_without_a_gap_goes_out_as_one_frame() {
        let mut window = window(5);
        for tag in [3, 1, 2] {
            assert!(window.settle(tag, Answer::Ack, ()).is_ok());
        }
        assert_eq!(frames(&mut window), [ack(3, true)]);
        assert_eq!(frames(&mut window), []);
        assert!(window.settle(4, Answer::Ack, ()).is_ok());
        assert_eq!(frames(&mut window), [ack(4, false)], "one tag is acked alone");
    }

    #[test]
    fn nothing_is_acked_over_a_tag_that_is_still_open() {
        let mut window = window(5);
        for tag in [1, 3, 5] {
            assert!(window.settle(tag, Answer::Ack, ()).is_ok());
        }
        assert_eq!(frames(&mut window), [ack(1, false)], "3 and 5 wait for one more plan");
        assert!(window.settle(4, Answer::Ack, ()).is_ok());
        assert_eq!(frames(&mut window), [ack(3, false), ack(4, false), ack(5, false)]);
        assert!(window.settle(2, Answer::Ack, ()).is_ok());
        assert_eq!(frames(&mut window), [ack(2, false)]);
    }

    #[test]
    fn a_gap_that_is_filled_in_time_is_grouped_over() {
        let mut window = window(4);
        assert!(ack_all(&mut window, &[1, 3]));
        assert_eq!(frames(&mut window), [ack(1, false)]);
        assert!(window.settle(2, Answer::Ack, ()).is_ok());
        assert_eq!(frames(&mut window), [ack(3, true)]);
    }

    #[test]
    fn a_requeued_tag_is_no_gap_since_its_frame_goes_first() {
        let mut window = window(3);
        assert!(ack_all(&mut window, &[1, 3]));
        assert!(window.settle(2, Answer::Requeue, ()).is_ok());
        let requeue = Frame { tag: 2, answer: Answer::Requeue, multiple: false };
        assert_eq!(frames(&mut window), [requeue, ack(3, true)]);
    }

    #[test]
    fn a_tag_is_settled_once_and_only_if_it_was_delivered() {
        let mut window = window(2);
        assert!(window.settle(1, Answer::Ack, ()).is_ok());
        assert!(window.settle(1, Answer::Requeue, ()).is_err());
        frames(&mut window);
        assert!([0, 1, 3].into_iter().all(|tag| window.settle(tag, Answer::Ack, ()).is_err()));
    }

    #[test]
    fn whatever_the_order_each_tag_is_answered_once_and_in_time() {
        // Every order of six tags, each a mix of acks and requeues, planned after every second answer.
        let mut orders = vec![Vec::new()];
        for tag in 1..=6_u64 {
            orders = orders
                .iter()
                .flat_map(|order: &Vec<u64>| {
                    (0..=order.len()).map(move |at| {
                        let mut longer = order.clone();
                        longer.insert(at, tag);
                        longer
                    })
                })
                .collect();
        }
        for order in orders {
            let mut window = window(6);
            let mut open: Vec<u64> = (1..=6).collect();
            let mut settled = Vec::new();
            let mut check = |frames: Vec<Frame>, settled: &[u64]| {
                for frame in frames {
                    let covers = |tag: &u64| *tag == frame.tag || (frame.multiple && *tag < frame.tag);
                    for tag in open.iter().filter(|tag| covers(tag)) {
                        assert!(
                            settled.contains(tag),
                            "{frame:?} answers {tag}, which is not settled: {order:?}"
                        );
                    }
                    assert!(open.contains(&frame.tag), "{frame:?} is told twice: {order:?}");
                    open.retain(|tag| !covers(tag));
                }
                open.clone()
            };
            for (index, tag) in order.iter().enumerate() {
                let answer = if tag % 3 == 0 { Answer::Requeue } else { Answer::Ack };
                assert!(window.settle(*tag, answer, ()).is_ok());
                settled.push(*tag);
                if index % 2 == 1 {
                    check(frames(&mut window), &settled);
                }
            }
            check(frames(&mut window), &settled);
            assert_eq!(check(frames(&mut window), &settled), [0_u64; 0], "all is told: {order:?}");
        }
    }
}
