//! What is shown: fetched from the admin API, and put into rows.

use indexmap::IndexMap;
use serde::Serialize;

use super::super::client::{Client, segment};
use super::super::text::{NONE, on_off};
use super::super::{Failure, What};
use super::{CURVES, FIGURES};
use crate::admin::{Figures, InstanceView, LivePage, SeriesPage, ServiceView};
use crate::conf::{Abort, Percent, Traffic};

/// Everything that is shown, as of one moment.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    /// Figures of the last seconds.
    pub(super) live: LivePage,
    /// Second by second.
    #[serde(skip)]
    pub(super) series: Option<SeriesPage>,
    /// The traffic document in force.
    pub(super) traffic: Traffic,
    /// Instances of the service that is selected.
    #[serde(skip)]
    pub(super) instances: Vec<InstanceView>,
}

/// In what order services are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As in the routing document.
    Name,
    Requests,
    Errors,
    Latency,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Name => Self::Requests,
            Self::Requests => Self::Errors,
            Self::Errors => Self::Latency,
            Self::Latency => Self::Name,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Errors => "errors",
            Self::Latency => "p99",
        }
    }
}

/// A service, or one of its subsets.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) service: String,
    pub(super) subset: Option<String>,
    pub(super) figures: Figures,
    /// Share and weight of a subset.
    share: Option<(f64, Percent)>,
    /// Requests by second, oldest first.
    pub(super) curve: Vec<u64>,
}

impl Row {
    /// What it is called within its service.
    pub(super) fn name(&self) -> &str {
        match self.subset.as_deref() {
            None => &self.service,
            Some("") => "(none)",
            Some(subset) => subset,
        }
    }

    /// Requests per second, errors, p50, p99, share, weight, in flight.
    pub(super) fn cells(&self) -> [String; 7] {
        let figures = &self.figures;
        let millis = |value: Option<f64>| value.map_or(NONE.to_owned(), latency);
        let errors = if figures.requests_per_second > 0.0 { percent(figures.error_rate) } else { NONE.to_owned() };
        [
            rate(figures.requests_per_second),
            errors,
            millis(figures.p50_ms),
            millis(figures.p99_ms),
            self.share.map_or(String::new(), |(share, _)| percent(share)),
            self.share.map_or(String::new(), |(_, weight)| weight.to_string()),
            figures.in_flight.to_string(),
        ]
    }
}

fn rate(per_second: f64) -> String {
    if per_second >= 100.0 { format!("{per_second:.0}") } else { format!("{per_second:.1}") }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 10.0 { format!("{percent:.0}%") } else { format!("{percent:.1}%") }
}

fn latency(millis: f64) -> String {
    match millis {
        10_000.0.. => format!("{:.1}s", millis / 1e3),
        100.0.. => format!("{millis:.0}ms"),
        _ => format!("{millis:.1}ms"),
    }
}

impl Page {
    /// Asks the gateway; with a service, for its instances as well.
    pub(super) fn fetch(client: &Client, service: Option<&str>) -> Result<Self, Failure> {
        let live: LivePage = client.get(&format!("/v1/live?seconds={FIGURES}"))?;
        let curves: LivePage = client.get(&format!("/v1/live?seconds={CURVES}&series=true"))?;
        let traffic = client.get("/v1/traffic")?;
        let view: Option<ServiceView> = match service {
            None => None,
            // It may have gone in the meantime.
            Some(name) => match client.get(&format!("/v1/services/{}", segment(name))) {
                Ok(view) => Some(view),
                Err(Failure { what: What::Refused(_), .. }) => None,
                Err(failure) => return Err(failure),
            },
        };
        let instances = view.map(|view| view.instances).unwrap_or_default();
        Ok(Self { live, series: curves.series, traffic, instances })
    }

    /// Services in an order, each with its subsets below.
    pub(super) fn rows(&self, order: Order) -> Vec<Row> {
        let mut services: Vec<_> = self.live.services.iter().collect();
        let key = |figures: &Figures| match order {
            Order::Name => 0.0,
            Order::Requests => figures.requests_per_second,
            Order::Errors => figures.error_rate,
            Order::Latency => figures.p99_ms.unwrap_or(0.0),
        };
        // Stable, so that equals stay in the order of the document.
        services.sort_by(|(_, a), (_, b)| key(&b.figures).total_cmp(&key(&a.figures)));
        let mut rows = Vec::new();
        for (name, service) in services {
            let curves = self.series.as_ref().and_then(|series| series.services.get(name));
            rows.push(Row {
                service: name.clone(),
                subset: None,
                figures: service.figures,
                share: None,
                curve: sum(curves.into_iter().flat_map(IndexMap::values).map(|curve| &curve.requests[..])),
            });
            rows.extend(service.subsets.iter().map(|(subset, live)| Row {
                service: name.clone(),
                subset: Some(subset.clone()),
                figures: live.figures,
                share: Some((live.share, live.weight)),
                curve: curves.and_then(|curves| curves.get(subset)).map_or(Vec::new(), |c| c.requests.clone()),
            }));
        }
        rows
    }

    /// Revision and switches in words.
    pub(super) fn state(&self) -> String {
        let switches = &self.traffic.switches;
        format!(
            "traffic revision {}, switches: canary {}, balancer {}, limits {}",
            self.traffic.revision,
            on_off(switches.canary.all),
            on_off(switches.balancer.all),
            on_off(switches.limits)
        )
    }

    /// What is out of the ordinary with services: aborts, switches of their own, ramps.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (name, service) in &self.traffic.services {
            match service.abort {
                Abort::Off => {}
                Abort::All => notes.push(format!("{name}: aborted")),
                Abort::Weights => notes.push(format!("{name}: weights aborted")),
            }
            if let Some(ramp) = &service.ramp {
                let why = if ramp.reason.is_empty() { String::new() } else { format!(": {}", ramp.reason) };
                notes.push(format!("{name}: ramp {}{why}", ramp.place()));
            }
        }
        let each = [("canary", &self.traffic.switches.canary), ("balancer", &self.traffic.switches.balancer)];
        for (switch, state) in each {
            let own = state.services.iter().map(|(name, on)| format!("{name}: {switch} switch {}", on_off(*on)));
            notes.extend(own);
        }
        notes
    }
}

/// Curves added up.
fn sum<'a>(curves: impl Iterator<Item = &'a [u64]>) -> Vec<u64> {
    curves.fold(Vec::new(), |mut sum, curve| {
        sum.resize(sum.len().max(curve.len()), 0);
        sum.iter_mut().zip(curve).for_each(|(sum, value)| *sum += value);
        sum
    })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Two services, of which `orders` has more requests and `users` more errors.
    pub(in super::super) fn page() -> Page {
        let figures = |rps: f64, errors: f64, p99: f64| json!({"requests_per_second": rps, "error_rate": errors, "p50_ms": p99 / 2.0, "p99_ms": p99, "in_flight": 1});
        let subset = |rps: f64, errors: f64, p99: f64, share: f64, weight: &str| {
            let mut subset = figures(rps, errors, p99);
            (subset["share"], subset["weight"]) = (json!(share), json!(weight));
            subset
        };
        let (mut users, mut orders) = (figures(100.0, 0.031, 52.0), figures(1_234.5, 0.0, 12_345.0));
        users["subsets"] =
            json!({"v1": subset(90.0, 0.0, 20.0, 0.9, "90%"), "v2": subset(10.0, 0.31, 52.0, 0.1, "10%")});
        orders["subsets"] = json!({"all": subset(1_234.5, 0.0, 12_345.0, 1.0, "100%")});
        let live = json!({"at": 1, "seconds": 10, "services": {"users": users, "orders": orders}});
        let curve = |values: [u64; 4]| json!({"requests": values, "errors": [0, 0, 0, 0], "p50_ms": [], "p99_ms": []});
        let series = json!({"step_seconds": 1, "services": {
            "users": {"v1": curve([0, 50, 90, 90]), "v2": curve([0, 0, 5, 10])},
        }});
        let traffic = json!({"revision": 7, "services": {"users": {
            "weights": {"v1": "90%", "v2": "10%"},
            "ramp": {"to": "v2", "steps": ["10%", "100%"], "state": "held", "reason": "12 of 200 requests"},
        }}, "switches": {"canary": {"all": false, "services": {"orders": true}}}});
        Page {
            live: serde_json::from_value(live).unwrap(),
            series: serde_json::from_value(series).unwrap(),
            traffic: serde_json::from_value(traffic).unwrap(),
            instances: Vec::new(),
        }
    }

    #[test]
    fn rows_are_sorted_by_service() {
        let cases = [
            (Order::Name, "users users/v1 users/v2 orders orders/all"),
            (Order::Requests, "orders orders/all users users/v1 users/v2"),
            (Order::Errors, "users users/v1 users/v2 orders orders/all"),
            (Order::Latency, "orders orders/all users users/v1 users/v2"),
        ];
        for (order, wanted) in cases {
            let name = |row: &Row| match &row.subset {
                Some(subset) => format!("{}/{subset}", row.service),
                None => row.service.clone(),
            };
            let names: Vec<_> = page().rows(order).iter().map(name).collect();
            assert_eq!(names.join(" "), wanted, "{order:?}");
        }
        assert_eq!(page().rows(Order::Name)[0].curve, [0, 50, 95, 100]);
        let (mut order, mut seen) = (Order::Name, 0);
        while order.next() != Order::Name {
            (order, seen) = (order.next(), seen + 1);
        }
        assert_eq!(seen, 3);
    }

    #[test]
    fn figures_are_short() {
        let cells = |at: usize| page().rows(Order::Name)[at].cells().join(" ");
        assert_eq!(cells(0), "100 3.1% 26.0ms 52.0ms   1");
        assert_eq!(cells(2), "10.0 31% 26.0ms 52.0ms 10% 10% 1");
        assert_eq!(cells(3), "1234 0% 6172ms 12.3s   1");
    }

    #[test]
    fn notes_tell_what_is_out_of_the_ordinary() {
        let wanted = ["users: ramp to v2, held, step 1 of 2 (10%): 12 of 200 requests", "orders: canary switch on"];
        assert_eq!(page().notes(), wanted);
        assert_eq!(page().state(), "traffic revision 7, switches: canary off, balancer off, limits off");
    }

    #[test]
    fn one_plain_table() {
        let text = super::super::plain(&page());
        assert!(text.starts_with("SERVICE  REQ/S"), "{text}");
        assert!(text.contains("\n  v2 ") && text.contains("figures of the last 10 s"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
