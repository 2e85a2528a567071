//! Until when certificates hold.

use prometheus::IntGaugeVec;
use prometheus::core::Collector;

use super::Families;
use crate::listen::Expiry;
use crate::telemetry::names;

/// When each certificate that is served ends.
pub struct CertificateMetrics(IntGaugeVec);

impl CertificateMetrics {
    pub(super) fn new(families: &Families<'_>) -> Result<Self, prometheus::Error> {
        let help = "When a certificate that is served ends, in seconds since 1970, by its first name.";
        families.gauges(names::CERTIFICATE_EXPIRY, help, &["listener", "name"]).map(Self)
    }

    /// Notes which certificates a listener serves; of several with one name, the one that ends first.
    pub fn set(&self, listener: &str, expiries: &[Expiry]) {
        let earliest = |name: &str| expiries.iter().filter(|expiry| expiry.name == name).map(|expiry| expiry.at).min();
        for expiry in expiries {
            let at = earliest(&expiry.name).unwrap_or(expiry.at);
            self.0.with_label_values(&[listener, &expiry.name]).set(at);
        }
        let series = self.0.collect();
        for metric in series.iter().flat_map(prometheus::proto::MetricFamily::get_metric) {
            let label = |name| metric.get_label().iter().find(|pair| pair.name() == name).map(|pair| pair.value());
            let (of, name) = (label("listener").unwrap_or_default(), label("name").unwrap_or_default());
            if of == listener && earliest(name).is_none() {
                // Only if it is gone already, which is as well.
                let _ = self.0.remove_label_values(&[of, name]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::listen::Expiry;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn certificates_that_are_served_no_more_leave_no_series() {
        let metrics = Metrics::new().unwrap();
        let shown = || {
            let text = metrics.render().unwrap();
            let lines = text.lines().filter(|line| line.starts_with("serin_certificate"));
            lines.map(|line| line.split_once('{').unwrap().1.to_owned()).collect::<Vec<_>>()
        };
        let expiry = |name: &str, at| Expiry { name: name.to_owned(), at };
        metrics.certificates.set("a", &[expiry("one", 5), expiry("two", 7), expiry("one", 3)]);
        metrics.certificates.set("b", &[expiry("one", 9)]);
        let others = [r#"listener="a",name="two"} 7"#, r#"listener="b",name="one"} 9"#];
        assert_eq!(shown(), [&[r#"listener="a",name="one"} 3"#], &others[..]].concat());
        metrics.certificates.set("a", &[expiry("two", 7)]);
        assert_eq!(shown(), others);
    }
}
