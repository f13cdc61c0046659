//! Counts the connections that came back, for whatever recorder of metrics the service installed.

use metrics::{Unit, counter, describe_counter};

use super::event::Role;

const RECONNECTS: &str = "windlass_reconnects_total";

pub(super) fn count(role: Role) {
    // Each time, which is seldom: the recorder may be younger than the connection.
    describe_counter!(RECONNECTS, Unit::Count, "connections to RabbitMQ that were lost and stand again");
    counter!(RECONNECTS, "role" => role.as_str()).increment(1);
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::{Role, count};

    #[test]
    fn reconnects_are_counted_by_the_role_of_the_connection() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            [Role::Consume, Role::Publish, Role::Consume].into_iter().for_each(count);
        });
        let page = recorder.handle().render();
        assert!(page.contains("windlass_reconnects_total{role=\"consume\"} 2\n"), "{page}");
        assert!(page.contains("windlass_reconnects_total{role=\"publish\"} 1\n"), "{page}");
        assert!(page.contains("# HELP windlass_reconnects_total "), "{page}");
    }
}
