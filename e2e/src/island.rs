//! An island: a network namespace with a server on it. Two cables lead there, one that gateways use and that a test cuts,
//! and one of the test's own, so that it can still talk to the server. What is sent over a cable that is cut vanishes:
//! nobody is told anything, as when a switch dies. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What the names of all namespaces begin with that tests make; the process and a number follow.
const PREFIX: &str = "serin-";
/// Networks of four addresses in 198.18.0.0/15, which is set aside for tests.
const NETWORKS: u32 = (1 << 17) / 4;

/// A namespace and its cables; they go with their handle.
pub struct Island {
    name: String,
    cables: [Cable; 2],
}

/// A pair of virtual network devices, one here and one on the island.
struct Cable {
    here: String,
    there: String,
    address: Ipv4Addr,
}

impl Island {
    /// Makes one. Where that is not possible it says why, and the test that wants it has nothing to show.
    #[must_use]
    pub fn new() -> Option<Self> {
        sweep();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        if let Err(problem) = ip(&["netns", "add", &name]) {
            eprintln!("skipped: no network namespace can be made here: {problem}");
            return None;
        }
        ip(&["-n", &name, "link", "set", "lo", "up"]).unwrap();
        let cables = ["a", "b"].map(|end| Cable::lay(&name, end));
        Some(Self { name, cables })
    }

    /// Where gateways reach the server.
    #[must_use]
    pub fn for_gateways(&self) -> IpAddr {
        self.cables[0].address.into()
    }

    /// Where the test reaches the server.
    #[must_use]
    pub fn for_tests(&self) -> IpAddr {
        self.cables[1].address.into()
    }

    /// Name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Cuts the cable that gateways use.
    pub fn cut(&self) {
        self.set("down");
    }

    /// Mends it.
    pub fn mend(&self) {
        self.set("up");
    }

    fn set(&self, state: &str) {
        ip(&["-n", &self.name, "link", "set", &self.cables[0].there, state]).unwrap();
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        for cable in &self.cables {
            // The other end goes with it.
            let _ = ip(&["link", "del", &cable.here]);
        }
        let _ = ip(&["netns", "del", &self.name]);
    }
}

impl Cable {
    /// Lays one to a namespace, in a network that nobody uses.
    fn lay(namespace: &str, end: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = || std::process::id().wrapping_mul(131).wrapping_add(NEXT.fetch_add(1, Relaxed)) % NETWORKS;
        let taken = ip(&["-4", "-o", "address"]).unwrap_or_default();
        let network = |number| u32::from(Ipv4Addr::new(198, 18, 0, 0)) + 4 * number;
        let free = |network: &u32| !taken.contains(&format!(" {}/", Ipv4Addr::from(network + 1)));
        let network = std::iter::repeat_with(number).map(network).find(free).unwrap();
        let (near, address) = (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2));
        // Names of devices have at most 15 letters; two processes never have the same network.
        let (here, there) = (format!("sr{network:x}{end}"), format!("sr{network:x}{end}i"));
        ip(&["link", "add", &here, "type", "veth", "peer", "name", &there, "netns", namespace]).unwrap();
        ip(&["address", "add", &format!("{near}/30"), "dev", &here]).unwrap();
        ip(&["link", "set", &here, "up"]).unwrap();
        ip(&["-n", namespace, "address", "add", &format!("{address}/30"), "dev", &there]).unwrap();
        ip(&["-n", namespace, "link", "set", &there, "up"]).unwrap();
        // A neighbour that is known once and for all: otherwise the kernel would find out, and say, that it is gone.
        let link = ip(&["-n", namespace, "-br", "link", "show", &there]).unwrap();
        let hardware = link.split_whitespace().nth(2).unwrap().to_owned();
        let (address_text, known) = (address.to_string(), ["nud", "permanent"]);
        let neighbour = ["neighbour", "replace", &address_text, "lladdr", &hardware, "dev", &here];
        ip(&[&neighbour[..], &known].concat()).unwrap();
        Self { here, there, address }
    }
}

/// Removes what tests left that were killed; its devices go with a namespace.
fn sweep() {
    for line in ip(&["netns", "list"]).unwrap_or_default().lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let run = Command::new("ip").args(arguments).output();
    let Output { status, stdout, stderr } = run.map_err(|error| format!("ip: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if status.success() { Ok(text(&stdout)) } else { Err(format!("ip {}: {}", arguments.join(" "), text(&stderr))) }
}
