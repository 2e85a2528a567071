//! A name server for tests: it says what it is told to say, or nothing, or nonsense.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// A record.
#[derive(Clone, Debug)]
pub enum Record {
    /// An address.
    A(Ipv4Addr),
    /// A service: priority, weight, port and target.
    Srv(u16, u16, u16, String),
}

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    Good,
    /// It says that it failed.
    Failing,
    /// It says nothing.
    Silent,
    /// It sends nonsense.
    Mad,
}

struct Zone {
    records: HashMap<String, Vec<Record>>,
    ttl: u32,
    mood: Mood,
    asked: u64,
}

/// A running name server; it ends with its handle.
pub struct Dns {
    /// Where it listens, over UDP.
    pub address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    task: JoinHandle<()>,
}

impl Dns {
    /// Starts one that knows no name.
    pub async fn start(ttl: u32) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let zone = Arc::new(Mutex::new(Zone { records: HashMap::new(), ttl, mood: Mood::Good, asked: 0 }));
        let shared = Arc::clone(&zone);
        let task = tokio::spawn(async move {
            let mut buffer = [0; 1_500];
            loop {
                let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
                let answer = shared.lock().unwrap().answer(&buffer[..length]);
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Self { address, zone, task }
    }

    /// Sets the records of a name; without any, it does not exist.
    pub fn set(&self, name: &str, records: Vec<Record>) {
        self.zone.lock().unwrap().records.insert(name.trim_end_matches('.').to_owned(), records);
    }

    /// Sets how it behaves.
    pub fn set_mood(&self, mood: Mood) {
        self.zone.lock().unwrap().mood = mood;
    }

    /// How often it was asked.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.zone.lock().unwrap().asked
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Zone {
    fn answer(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        self.asked += 1;
        match self.mood {
            Mood::Silent => return None,
            Mood::Mad => return Some(vec![0xff; 40]),
            Mood::Good | Mood::Failing => {}
        }
        let (name, end) = read_name(query, 12)?;
        let kind = u16::from_be_bytes([*query.get(end)?, *query.get(end + 1)?]);
        let question = query.get(12..end + 4)?;
        let known = self.records.get(&name.to_lowercase()).filter(|records| !records.is_empty());
        let fits = |record: &&Record| matches!((record, kind), (Record::A(_), 1) | (Record::Srv(..), 33));
        let found: Vec<_> = known.into_iter().flatten().filter(fits).cloned().collect();
        let code: u16 = match (self.mood, known.is_some()) {
            (Mood::Failing, _) => 2,
            (_, true) => 0,
            (_, false) => 3,
        };
        let found = if code == 0 { found } else { vec![] };
        let mut answer = query.get(..2)?.to_vec();
        answer.extend((0x8580_u16 | code).to_be_bytes());
        for count in [1, found.len() as u16, 0, 0] {
            answer.extend(count.to_be_bytes());
        }
        answer.extend(question);
        for record in found {
            let data = match &record {
                Record::A(ip) => ip.octets().to_vec(),
                Record::Srv(priority, weight, port, target) => {
                    let numbers = [priority, weight, port].into_iter().flat_map(|number| number.to_be_bytes());
                    numbers.chain(write_name(target)).collect()
                }
            };
            answer.extend([0xc0, 12]);
            answer.extend(kind.to_be_bytes());
            answer.extend(1_u16.to_be_bytes());
            answer.extend(self.ttl.to_be_bytes());
            answer.extend((data.len() as u16).to_be_bytes());
            answer.extend(data);
        }
        Some(answer)
    }
}

fn read_name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut labels = vec![];
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        labels.push(String::from_utf8_lossy(message.get(at..at + length)?).into_owned());
        at += length;
    }
}

fn write_name(name: &str) -> Vec<u8> {
    let mut bytes = vec![];
    for label in name.trim_end_matches('.').split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}
