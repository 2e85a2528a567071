//! Load reports as they come in a response: the header and trailer `endpoint-load-metrics` with a report in JSON, text
//! or base64, and `endpoint-load-metrics-bin` with base64 alone, as Envoy and gRPC write them (ORCA, gRFC A51). What is
//! read are the five numbers that decisions use; names of its own that an application reports are passed over.

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

/// Longest report that is read, in bytes.
pub const LONGEST: usize = 4096;

/// gRPC leaves the padding out, Envoy does not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The load of an instance by its own account. All numbers are finite and not below 0; 0 is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadReport {
    /// Utilisation of the processor; above 1 where it counts cores.
    #[serde(rename = "cpu_utilization", alias = "cpuUtilization")]
    pub cpu: f64,
    /// Utilisation of the memory.
    #[serde(rename = "mem_utilization", alias = "memUtilization")]
    pub memory: f64,
    /// Utilisation as the application sees it, which goes before that of the processor.
    #[serde(rename = "application_utilization", alias = "applicationUtilization")]
    pub application: f64,
    /// Requests per second.
    #[serde(rename = "rps_fractional", alias = "rpsFractional")]
    pub rps: f64,
    /// Errors per second.
    pub eps: f64,
}

/// A report that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no load report in JSON, text or base64 of at most {LONGEST} bytes")]
pub struct BadReport;

impl LoadReport {
    /// Reads the value of `endpoint-load-metrics`: `JSON {...}`, `TEXT cpu_utilization=0.3,...` or `BIN ...`; JSON and
    /// text also without the word.
    ///
    /// # Errors
    /// If it is none of these, too long, or has a number that is below 0 or none.
    pub fn parse(value: &[u8]) -> Result<Self, BadReport> {
        let value = bounded(value)?.trim_ascii();
        let (format, rest) = match value.iter().position(u8::is_ascii_whitespace) {
            Some(end) => (&value[..end], value[end..].trim_ascii_start()),
            None => (&b""[..], value),
        };
        match format {
            b"JSON" => Self::json(rest),
            b"TEXT" => Self::text(rest),
            b"BIN" => Self::base64(rest),
            _ if value.starts_with(b"{") => Self::json(value),
            _ => Self::text(value),
        }
    }

    /// Reads the value of `endpoint-load-metrics-bin`.
    ///
    /// # Errors
    /// If it is no base64 of a message `xds.data.orca.v3.OrcaLoadReport`, or too long, or has a number that is below 0
    /// or none.
    pub fn base64(value: &[u8]) -> Result<Self, BadReport> {
        let mut decoded = [0; LONGEST];
        let length = BASE64.decode_slice(bounded(value)?.trim_ascii(), &mut decoded).map_err(|_| BadReport)?;
        Self::protobuf(&decoded[..length])
    }

    /// Utilisation that counts: the application's own if it has one, else the processor's.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        if self.application > 0.0 { self.application } else { self.cpu }
    }

    /// Weight by gRFC A58; `own_rate` stands for a rate that is not reported. `None` if rate or utilisation is unknown.
    #[must_use]
    pub fn weight(&self, own_rate: f64, error_penalty: f64) -> Option<f64> {
        let rate = if self.rps > 0.0 { self.rps } else { own_rate };
        let load = self.utilization() + if rate > 0.0 { self.eps / rate * error_penalty } else { 0.0 };
        let weight = rate / load;
        (rate > 0.0 && self.utilization() > 0.0 && weight.is_finite() && weight > 0.0).then_some(weight)
    }

    fn json(text: &[u8]) -> Result<Self, BadReport> {
        if !text.starts_with(b"{") {
            // serde would take a list of numbers as well.
            return Err(BadReport);
        }
        serde_json::from_slice::<Self>(text).map_err(|_| BadReport)?.checked()
    }

    fn text(text: &[u8]) -> Result<Self, BadReport> {
        let text = std::str::from_utf8(text).map_err(|_| BadReport)?;
        let mut report = Self::default();
        for pair in text.split(',') {
            let (name, number) = pair.split_once(['=', ':']).ok_or(BadReport)?;
            let number = number.trim().parse().map_err(|_| BadReport)?;
            match name.trim() {
                "cpu_utilization" | "cpu" => report.cpu = number,
                "mem_utilization" | "mem" => report.memory = number,
                "application_utilization" => report.application = number,
                "rps_fractional" | "rps" => report.rps = number,
                "eps" => report.eps = number,
                "" => return Err(BadReport),
                _ => {}
            }
        }
        report.checked()
    }

    /// The message is flat as far as it is read: everything with a length is passed over unread.
    fn protobuf(message: &[u8]) -> Result<Self, BadReport> {
        let (mut report, mut rest) = (Self::default(), message);
        while !rest.is_empty() {
            let tag = varint(&mut rest)?;
            let number = match tag & 7 {
                0 => varint(&mut rest)? as f64,
                1 => f64::from_le_bytes(*take(&mut rest)?),
                2 => {
                    let length = usize::try_from(varint(&mut rest)?).map_err(|_| BadReport)?;
                    rest = rest.get(length..).ok_or(BadReport)?;
                    continue;
                }
                5 => {
                    take::<4>(&mut rest)?;
                    continue;
                }
                _ => return Err(BadReport),
            };
            match tag {
                0x09 => report.cpu = number,
                0x11 => report.memory = number,
                // `rps` in whole numbers, which `rps_fractional` replaced.
                0x18 if report.rps == 0.0 => report.rps = number,
                0x31 => report.rps = number,
                0x39 => report.eps = number,
                0x49 => report.application = number,
                _ => {}
            }
        }
        report.checked()
    }

    fn checked(self) -> Result<Self, BadReport> {
        let all = [self.cpu, self.memory, self.application, self.rps, self.eps];
        if all.iter().all(|number| number.is_finite() && *number >= 0.0) { Ok(self) } else { Err(BadReport) }
    }
}

fn bounded(value: &[u8]) -> Result<&[u8], BadReport> {
    if value.len() > LONGEST { Err(BadReport) } else { Ok(value) }
}

fn varint(rest: &mut &[u8]) -> Result<u64, BadReport> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = *take::<1>(rest)?;
        number |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(number);
        }
    }
    Err(BadReport)
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], BadReport> {
    let (head, tail) = rest.split_first_chunk().ok_or(BadReport)?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(cpu: f64, memory: f64, application: f64, rps: f64, eps: f64) -> LoadReport {
        LoadReport { cpu, memory, application, rps, eps }
    }

    /// A message with the given doubles by field number, a map entry and an old `rps`.
    fn message(doubles: &[(u8, f64)]) -> Vec<u8> {
        let mut bytes = vec![0x18, 0xac, 0x02]; // rps: 300
        bytes.extend([0x2a, 0x03, 0x0a, 0x01, b'x']); // utilization: { "x" }
        for (field, number) in doubles {
            bytes.push(field << 3 | 1);
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn all_forms_are_read() {
        let base64 = BASE64.encode(message(&[(1, 0.5), (2, 0.25), (6, 9.5), (7, 1.0), (9, 0.75)]));
        let bare = base64.trim_end_matches('=');
        let (binary, unpadded) = (format!("BIN {base64}"), format!("BIN {bare}"));
        let full = all(0.5, 0.25, 0.75, 9.5, 1.0);
        let cases: [(&str, LoadReport); 9] = [
            (
                r#"JSON {"cpu_utilization": 0.5, "mem_utilization": 0.25, "application_utilization": 0.75, "rps_fractional": 9.5, "eps": 1, "named_metrics": {"a": 1}}"#,
                full,
            ),
            (
                r#"JSON {"cpuUtilization":0.5,"memUtilization":0.25,"applicationUtilization":0.75,"rpsFractional":9.5,"eps":1}"#,
                full,
            ),
            (r#"{"cpu_utilization":0.3}"#, all(0.3, 0.0, 0.0, 0.0, 0.0)),
            ("JSON {}", LoadReport::default()),
            ("TEXT cpu_utilization=0.3, mem_utilization = 0.25 ,named_metrics.kv=7", all(0.3, 0.25, 0.0, 0.0, 0.0)),
            ("TEXT cpu:0.3,rps_fractional:10", all(0.3, 0.0, 0.0, 10.0, 0.0)),
            ("cpu_utilization=1.5", all(1.5, 0.0, 0.0, 0.0, 0.0)),
            (&binary, full),
            (&unpadded, full),
        ];
        for (text, expected) in cases {
            assert_eq!(LoadReport::parse(text.as_bytes()), Ok(expected), "{text}");
        }
        assert_eq!(LoadReport::base64(base64.as_bytes()), Ok(full));
        assert_eq!(LoadReport::base64(b"GKwC"), Ok(all(0.0, 0.0, 0.0, 300.0, 0.0)));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let cases = [
            "",
            "JSON",
            "JSON {",
            "JSON []",
            r#"JSON {"cpu_utilization": "high"}"#,
            r#"JSON {"cpu_utilization": -1}"#,
            r#"JSON {"cpu_utilization": 1e999}"#,
            "TEXT",
            "TEXT cpu",
            "TEXT cpu=",
            "TEXT cpu=high",
            "TEXT cpu=NaN",
            "TEXT cpu=inf",
            "TEXT cpu=-0.1",
            "TEXT =1",
            "TEXT cpu=1,",
            "BIN",
            "BIN !",
            "BIN CQ",
            "BIN Cw==",
            "XML <a/>",
        ];
        for text in cases {
            assert_eq!(LoadReport::parse(text.as_bytes()), Err(BadReport), "{text}");
        }
        let long = format!("TEXT cpu=0.{}", "1".repeat(LONGEST));
        assert_eq!(LoadReport::parse(long.as_bytes()), Err(BadReport));
    }

    #[test]
    fn the_application_goes_before_the_processor() {
        assert_eq!(all(0.5, 0.0, 0.0, 0.0, 0.0).utilization(), 0.5);
        assert_eq!(all(0.5, 0.0, 0.9, 0.0, 0.0).utilization(), 0.9);
    }

    fn sound(read: Result<LoadReport, BadReport>) -> bool {
        read.is_err() || read.and_then(LoadReport::checked).is_ok()
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..5_000), word in 0..4usize) {
            let value = [[&b"JSON "[..], b"TEXT ", b"BIN ", b""][word], &bytes].concat();
            prop_assert!(sound(LoadReport::parse(&value)));
            prop_assert!(sound(LoadReport::base64(&value)));
            prop_assert!(sound(LoadReport::protobuf(&bytes)));
        }

        #[test]
        fn no_text_breaks_it(text in r#"(JSON |TEXT |BIN )?[a-z_{}":=,.0-9e+ -]{0,200}"#) {
            prop_assert!(sound(LoadReport::parse(text.as_bytes())));
        }

        #[test]
        fn all_forms_say_the_same(cpu in 0.0..4.0f64, memory in 0.0..1.0f64, rps in 0.1..1e6f64, eps in 0.0..1e3f64) {
            let expected = Ok(all(cpu, memory, 0.0, rps, eps));
            let json = format!(r#"JSON {{"cpu_utilization":{cpu:?},"mem_utilization":{memory:?},"rps_fractional":{rps:?},"eps":{eps:?}}}"#);
            let text = format!("TEXT cpu_utilization={cpu},mem_utilization={memory},rps_fractional={rps},eps={eps}");
            // JSON numbers may be off in the last digit.
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b;
            let read = LoadReport::parse(json.as_bytes()).unwrap();
            prop_assert!(close(read.cpu, cpu) && close(read.memory, memory) && close(read.rps, rps) && close(read.eps, eps));
            prop_assert_eq!(LoadReport::parse(text.as_bytes()), expected);
            prop_assert_eq!(LoadReport::protobuf(&message(&[(1, cpu), (2, memory), (6, rps), (7, eps)])), expected);
        }
    }
}
