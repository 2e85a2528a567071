//! The only home of metric names and label names.

/// Requests by route, service, subset and status class.
pub const REQUESTS: &str = "serin_requests_total";
/// Time from request head to end of response, by service and subset.
pub const REQUEST_SECONDS: &str = "serin_request_duration_seconds";
/// Time of the decision alone, by service.
pub const DECISION_SECONDS: &str = "serin_decision_seconds";
/// Times an instance was picked.
pub const SELECTIONS: &str = "serin_selections_total";
/// Time from the start of an attempt to the head of its response, by instance and strategy.
pub const CALL_SECONDS: &str = "serin_upstream_request_duration_seconds";
/// Attempts that failed, by instance and kind of failure.
pub const FAILURES: &str = "serin_upstream_failures_total";
/// Requests that a tag rule sent to its subset.
pub const TAGS: &str = "serin_tag_matches_total";
/// Instances of a subset by state.
pub const SUBSET_INSTANCES: &str = "serin_subset_instances";
/// 1 for the stable subset of a service, 0 for the others.
pub const SUBSET_STABLE: &str = "serin_subset_stable";
/// Time since what is in force of a source came into force.
pub const SOURCE_LOADED: &str = "serin_source_loaded_age_seconds";
/// Time since a source was last seen to hold what is in force.
pub const SOURCE_CONFIRMED: &str = "serin_source_confirmed_age_seconds";
/// 1 while a config center or a registry can be reached.
pub const SOURCE_REACHABLE: &str = "serin_source_reachable";
/// Lists of a registry that are held back.
pub const SOURCE_HELD: &str = "serin_source_held_lists";
/// Entries of a registry that could not be read.
pub const SOURCE_UNREADABLE: &str = "serin_source_unreadable_total";
/// Upstream attempts by instance and outcome.
pub const UPSTREAM: &str = "serin_upstream_requests_total";
/// Requests that another subset served, by reason.
pub const FALLBACKS: &str = "serin_fallbacks_total";
/// Requests by why they were meant for their subset.
pub const ASSIGNMENTS: &str = "serin_assignments_total";
/// Retries by service.
pub const RETRIES: &str = "serin_retries_total";
/// Revision in force of a document.
pub const REVISION: &str = "serin_revision";
/// 1 while a kill switch is on.
pub const SWITCH: &str = "serin_switch";
/// Weight in force of a subset, from 0 to 1.
pub const WEIGHT: &str = "serin_subset_weight_ratio";
/// 1 while a service's chain is out because it panicked or was slow.
pub const SELF_GUARD: &str = "serin_self_guard_tripped";
/// Times that a service's chain was taken out, by why.
pub const TRIPS: &str = "serin_self_guard_trips_total";
/// Load reports of instances, by whether they could be read.
pub const LOAD_REPORTS: &str = "serin_load_reports_total";
/// Requests for which a narrow found nothing that it wants and left everything.
pub const MISSED: &str = "serin_narrow_missed_total";
/// The certificates of listeners, where documents are told apart.
pub const CERTIFICATES: &str = "certificates";
/// When a certificate that listeners serve ends, in seconds since 1970.
pub const CERTIFICATE_EXPIRY: &str = "serin_certificate_expiry_timestamp_seconds";
/// Documents that were refused.
pub const REFUSED: &str = "serin_config_refused_total";
/// Documents that came into force.
pub const APPLIED: &str = "serin_config_applied_total";
/// Time to build a snapshot from documents.
pub const BUILD_SECONDS: &str = "serin_config_build_seconds";
/// Lines that a full or broken sink lost.
pub const LOG_DROPPED: &str = "serin_access_log_dropped_total";
/// Lines of the process's own log that were lost.
pub const OWN_LOG_DROPPED: &str = "serin_log_dropped_total";
/// Spans that the receiver took.
pub const SPANS_SENT: &str = "serin_spans_sent_total";
/// Spans that were lost, by reason.
pub const SPANS_DROPPED: &str = "serin_spans_dropped_total";
/// Times that metrics were sent, by outcome.
pub const METRICS_SENT: &str = "serin_metrics_exports_total";
/// Entries that could not be written to the audit log.
pub const AUDIT_LOST: &str = "serin_audit_lost_total";
/// Lines that readers of decisions as they happen were too slow for.
pub const TAIL_DROPPED: &str = "serin_tail_dropped_total";
/// Step that a ramp is at.
pub const RAMP_STEP: &str = "serin_ramp_step";
/// State of a ramp.
pub const RAMP_STATE: &str = "serin_ramp_state";
/// Ejections by instance and cause.
pub const EJECTIONS: &str = "serin_ejections_total";
/// Ejections that the cap kept from happening.
pub const EJECTIONS_REFUSED: &str = "serin_ejections_refused_total";
/// Times an instance became degraded.
pub const DEGRADED: &str = "serin_degraded_total";
/// State of a breaker.
pub const BREAKER: &str = "serin_breaker_state";
/// Changes of a breaker's state.
pub const BREAKER_TURNS: &str = "serin_breaker_transitions_total";
/// Attempts for which health was ignored.
pub const PANIC: &str = "serin_panic_total";
/// Second attempts beside a first, by outcome.
pub const HEDGES: &str = "serin_hedges_total";
/// Retries that the budget did not allow.
pub const BUDGET_EXHAUSTED: &str = "serin_retry_budget_exhausted_total";
/// Requests that were refused for how they were written, by what was wrong.
pub const MALFORMED: &str = "serin_refused_requests_total";
/// Requests in flight.
pub const IN_FLIGHT: &str = "serin_requests_in_flight";
/// What rate limits did with requests, by rule and outcome.
pub const RATE_LIMIT: &str = "serin_rate_limit_decisions_total";
/// Keys that a rate limit keeps.
pub const RATE_LIMIT_KEYS: &str = "serin_rate_limit_keys";
/// 1 while rate limits of the fleet are local.
pub const FLEET_FALLBACK: &str = "serin_rate_limit_fallback";
/// Gateways that share the rate limits of the fleet.
pub const FLEET_REPLICAS: &str = "serin_rate_limit_replicas";
/// Orders of leases, by outcome.
pub const FLEET_LEASES: &str = "serin_rate_limit_leases_total";
/// Units that were leased.
pub const FLEET_UNITS: &str = "serin_rate_limit_leased_units_total";
/// Requests that waited for a lease.
pub const FLEET_WAITS: &str = "serin_rate_limit_waits_total";
/// Failures of Redis, by kind.
pub const REDIS_FAILURES: &str = "serin_redis_failures_total";
/// Time of a message to Redis with orders of leases.
pub const REDIS_SECONDS: &str = "serin_redis_seconds";
/// Concurrency limit in force, by service.
pub const CONCURRENCY_LIMIT: &str = "serin_concurrency_limit";
/// Requests that count against the concurrency limit, by service.
pub const CONCURRENCY_IN_FLIGHT: &str = "serin_concurrency_in_flight";
/// Requests over the concurrency limit, by service.
pub const CONCURRENCY_REFUSED: &str = "serin_concurrency_refused_total";
/// Requests refused by an overloaded gateway, by resource.
pub const SHED: &str = "serin_shed_total";
/// 1 while the gateway sheds load, by resource.
pub const SHEDDING: &str = "serin_shedding";
/// How much of a resource is used: bytes, descriptors or requests.
pub const RESOURCE_USED: &str = "serin_resource_used";
/// Health checks by instance, kind and outcome.
pub const CHECKS: &str = "serin_health_checks_total";
/// Instances that are being checked.
pub const CHECKERS: &str = "serin_health_checkers";
/// 1 while an instance may take traffic as far as its health is known, else 0.
pub const HEALTH: &str = "serin_instance_healthy";
/// Connections to an instance: open ones, and those that requests use.
pub const CONNECTIONS: &str = "serin_pool_connections";
/// Requests that had to wait for a connection.
pub const POOL_WAITS: &str = "serin_pool_waits_total";
/// Attempts that found all connections in use for as long as they may wait.
pub const POOL_OVERFLOWS: &str = "serin_pool_overflows_total";
/// What clients were refused for going beyond a limit.
pub const EDGE_REFUSED: &str = "serin_edge_refused_total";
/// Connections of clients.
pub const CLIENT_CONNECTIONS: &str = "serin_client_connections";
/// Tasks of the runtime that serves clients.
pub const TASKS: &str = "serin_tasks";
/// Build information; always 1.
pub const BUILD_INFO: &str = "serin_build_info";

/// Why spans are lost, as a label: the queue was full, they could not be delivered, the receiver rejected them.
pub const SPAN_LOSSES: [&str; 3] = ["queue_full", "undelivered", "rejected"];

/// The routing document, as a label.
pub const ROUTING: &str = "routing";
/// The traffic document, as a label.
pub const TRAFFIC: &str = "traffic";
/// The server of the fleet's limits, where sources are told apart.
pub const LIMITS: &str = "limits";

/// Status classes as a label, by the first digit of the status; 0 is a client that left before a response.
pub const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The position in [`CLASSES`] of a status.
#[must_use]
pub fn class(status: u16) -> usize {
    match status / 100 {
        digit @ 1..=5 => usize::from(digit),
        _ => 0,
    }
}
