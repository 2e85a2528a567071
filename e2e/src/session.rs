//! Follows a page of the book: writes its files, starts its servers, runs its commands and compares what they print. The
//! ports that a page names are replaced by free ones, and back again in what is printed.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::book::{self, Block, Command, Page};
use crate::client::{Call, Conn};
use crate::gateway::{binary, directory, free_address, is_ready};
use crate::wait;

/// Hosts before a port that is replaced.
const LOCAL: [&str; 3] = ["127.0.0.1:", "localhost:", "0.0.0.0:"];
/// The port of the admin API unless a page has another one.
const ADMIN: u16 = 9901;

/// A page that is being followed.
pub struct Session {
    dir: TempDir,
    /// Ports in the page, and the free ones in their place.
    ports: Vec<(u16, u16)>,
    jobs: Vec<Job>,
    running: bool,
}

struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows a page from its beginning to its end.
///
/// # Errors
/// What a command printed, and what the page says that it prints.
pub async fn follow(page: &Page) -> Result<(), String> {
    let mut session = Session { dir: directory(), ports: Vec::new(), jobs: Vec::new(), running: false };
    session.allot(page);
    if let Some(base) = page.uses() {
        for block in base.blocks() {
            session.set_up(&block).await.map_err(|problem| at(&base, &block, &problem))?;
        }
    }
    for name in page.copies() {
        let text = fs::read_to_string(repository().join(&name)).map_err(|error| format!("{name}: {error}"))?;
        let text = session.with_free_ports(&text);
        session.write(&name, &text).await?;
    }
    for block in page.blocks() {
        session.take(&block).await.map_err(|problem| at(page, &block, &problem))?;
    }
    Ok(())
}

fn at(page: &Page, block: &Block, problem: &str) -> String {
    format!("{}:{}: {problem}", page.path.display(), block.line)
}

impl Session {
    /// Files and servers of a page that another one begins with.
    async fn set_up(&mut self, block: &Block) -> Result<(), String> {
        if block.word("file").is_some() {
            return self.take(block).await;
        }
        if block.language == "console" {
            for command in book::commands(&block.text).iter().filter(|command| command.line.ends_with(" &")) {
                self.start(command).await?;
            }
        }
        Ok(())
    }

    async fn take(&mut self, block: &Block) -> Result<(), String> {
        if let Some(name) = block.word("file") {
            let text = self.with_free_ports(&block.text);
            return self.write(name, &text).await;
        }
        if let Some(name) = block.word("add") {
            let text = self.with_free_ports(&block.text);
            let file = fs::read_to_string(self.dir.path().join(name)).map_err(|error| format!("{name}: {error}"))?;
            let text = insert(&file, block.word("under").unwrap_or_default(), &text)?;
            return self.write(name, &text).await;
        }
        match &*block.language {
            "console" => self.console(block).await,
            "text" => Ok(()),
            _ if block.word("skip").is_some() => Ok(()),
            _ => match block.word("from") {
                Some(path) => quoted(path, &block.text),
                None => Err(format!("nothing is done with this block of {:?}", block.language)),
            },
        }
    }

    /// Replaces a file, and waits until a running gateway has looked at it.
    async fn write(&mut self, name: &str, text: &str) -> Result<(), String> {
        let path = self.dir.path().join(name);
        if fs::read_to_string(&path).is_ok_and(|known| known == text) {
            return Ok(());
        }
        let watched = self.running && matches!(name.trim_start_matches("conf/"), "routing.yaml" | "traffic.yaml");
        let before = if watched { Some(self.latest().await) } else { None };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| error.to_string())?;
        }
        crate::gateway::write_atomically(&path, text);
        if let Some(before) = before {
            let session = &*self;
            let look = || async { Some(session.latest().await).filter(|now| *now != before) };
            let seen = wait::until(format!("the gateway to see {name}"), look).await;
            if seen["entries"][0]["outcome"] != "applied" {
                return Err(format!("{name} is refused: {seen}"));
            }
        }
        Ok(())
    }

    /// The newest entry of the gateway's history.
    async fn latest(&self) -> Value {
        let admin = self.admin();
        let call = Call::get("/v1/history?limit=1").host(&admin.to_string());
        call.try_on(&mut Conn::http1(admin).await).await.map_or(Value::Null, |reply| reply.json())
    }

    fn admin(&self) -> SocketAddr {
        let port = self.ports.iter().find(|(known, _)| *known == ADMIN).map_or(ADMIN, |(_, free)| *free);
        ([127, 0, 0, 1], port).into()
    }

    async fn console(&mut self, block: &Block) -> Result<(), String> {
        let commands = book::commands(&block.text);
        let begin = Instant::now();
        loop {
            let done = self.run_all(block, &commands).await;
            if done.is_ok() || !block.has("retry") || begin.elapsed() > wait::DEADLINE {
                return done;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    async fn run_all(&mut self, block: &Block, commands: &[Command]) -> Result<(), String> {
        for (at, command) in commands.iter().enumerate() {
            if command.line.ends_with(" &") {
                self.start(command).await?;
                continue;
            }
            if let Some(job) = command.line.strip_prefix("kill %") {
                let job = job.parse::<usize>().map_err(|error| error.to_string())?;
                let killed = &mut self.jobs.get_mut(job - 1).ok_or("no such job")?.0;
                // Its addresses are free when it is gone, not when it is told to go.
                killed.kill().and_then(|()| killed.wait()).map_err(|error| error.to_string())?;
                continue;
            }
            let last = at + 1 == commands.len();
            let wanted = block.word("exit").filter(|_| last).map_or(0, |code| code.parse().unwrap_or(-1));
            self.run(command, wanted).await?;
        }
        Ok(())
    }

    async fn run(&mut self, command: &Command, wanted: i32) -> Result<(), String> {
        let mut shell = self.shell(&command.line);
        let output = tokio::task::spawn_blocking(move || shell.output());
        let output = tokio::time::timeout(wait::DEADLINE, output).await.map_err(|_| "it does not end".to_owned());
        let output = output?.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let printed = self.with_page_ports(&String::from_utf8_lossy(&output.stdout));
        let code = output.status.code().unwrap_or(-1);
        if code != wanted {
            return Err(format!("`{}` ended with {code}, not {wanted}:\n{printed}", command.line));
        }
        if command.output.is_empty() || book::matches(&command.output, &printed) {
            return Ok(());
        }
        Err(format!("`{}` printed\n{printed}\nand not\n{}", command.line, command.output.join("\n")))
    }

    /// Starts a server and waits until it serves.
    async fn start(&mut self, command: &Command) -> Result<(), String> {
        let line = command.line.trim_end_matches(" &");
        let mut shell = self.shell(&format!("exec {line}"));
        let log = self.dir.path().join(format!("job-{}.log", self.jobs.len() + 1));
        let file = fs::File::create(&log).map_err(|error| error.to_string())?;
        let child = shell.stdout(file).spawn().map_err(|error| error.to_string())?;
        self.jobs.push(Job(child));
        let text = self.with_free_ports(line);
        let gateway = text.contains("serin run") || text.contains("serin demo");
        let ports = if gateway { vec![self.admin_of(&text)] } else { addresses(&text) };
        let begin = Instant::now();
        for address in ports {
            loop {
                let up = if gateway {
                    is_ready(address).await
                } else {
                    tokio::net::TcpStream::connect(address).await.is_ok()
                };
                if up {
                    break;
                }
                let ended = self.jobs.last_mut().is_some_and(|job| job.0.try_wait().is_ok_and(|code| code.is_some()));
                if ended || begin.elapsed() > wait::DEADLINE {
                    let log = fs::read_to_string(&log).unwrap_or_default();
                    return Err(format!("`{line}` does not serve {address}:\n{log}"));
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        self.running |= gateway;
        Ok(())
    }

    /// The admin address of the gateway that a command starts, as its bootstrap document says.
    fn admin_of(&self, line: &str) -> SocketAddr {
        let file = line.split_once("--config ").and_then(|(_, rest)| rest.split_whitespace().next());
        let text = file.and_then(|file| fs::read_to_string(self.dir.path().join(file)).ok()).unwrap_or_default();
        let admin = text.lines().find(|line| line.starts_with("admin:")).unwrap_or_default();
        let port = first_host(admin).and_then(|(at, host)| leading_port(&admin[at + host.len()..]));
        port.map_or_else(|| self.admin(), |port| ([127, 0, 0, 1], port).into())
    }

    fn shell(&mut self, line: &str) -> Process {
        let line = self.with_free_ports(line);
        let serin = binary();
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", serin.parent().unwrap_or(Path::new("/")).display());
        let mut shell = Process::new("bash");
        shell
            .args(["-o", "pipefail", "-c", &format!("exec 2>&1; {line}")])
            .current_dir(self.dir.path())
            .env("PATH", path)
            .env("SERIN_ADMIN", format!("http://{}", self.admin()))
            .env("SERIN_OPERATOR", "anna")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        shell
    }

    /// Gives free ports to all that a page names, in the same order: instances are shown in order of their addresses.
    fn allot(&mut self, page: &Page) {
        let base = page.uses().map_or(String::new(), |base| base.text);
        let copied =
            page.copies().into_iter().map(|name| fs::read_to_string(repository().join(name)).unwrap_or_default());
        let text = [page.text.clone(), base].into_iter().chain(copied).collect::<Vec<_>>().join("\n");
        let named = LOCAL.iter().flat_map(|host| text.split(host).skip(1)).filter_map(leading_port);
        let ports: BTreeSet<u16> = named.chain([ADMIN]).collect();
        let free: BTreeSet<u16> = ports.iter().map(|_| free_address().port()).collect();
        self.ports = ports.into_iter().zip(free).collect();
    }

    /// The free port in the place of one in the page.
    fn port(&mut self, port: u16) -> u16 {
        if let Some((_, free)) = self.ports.iter().find(|(known, _)| *known == port) {
            return *free;
        }
        let free = free_address().port();
        self.ports.push((port, free));
        free
    }

    fn with_free_ports(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((at, host)) = first_host(rest) {
            let digits_at = at + host.len();
            let digits: String = rest[digits_at..].chars().take_while(char::is_ascii_digit).collect();
            out.push_str(&rest[..digits_at]);
            match digits.parse() {
                Ok(port) => out.push_str(&self.port(port).to_string()),
                Err(_) => out.push_str(&digits),
            }
            rest = &rest[digits_at + digits.len()..];
        }
        out + rest
    }

    fn with_page_ports(&self, text: &str) -> String {
        let replace = |text: String, (page, free): &(u16, u16)| text.replace(&format!(":{free}"), &format!(":{page}"));
        self.ports.iter().fold(text.to_owned(), replace)
    }
}

/// The port that a text begins with.
fn leading_port(text: &str) -> Option<u16> {
    text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn first_host(text: &str) -> Option<(usize, &'static str)> {
    LOCAL.iter().filter_map(|host| Some((text.find(host)?, *host))).min()
}

/// The addresses that a command line names.
fn addresses(text: &str) -> Vec<SocketAddr> {
    text.split(|c: char| c.is_whitespace() || c == '@').filter_map(|word| word.parse().ok()).collect()
}

/// Puts lines below the first line `KEY:` of a YAML text, indented as what is below a key is.
fn insert(file: &str, key: &str, lines: &str) -> Result<String, String> {
    if key.is_empty() {
        return Ok(format!("{}\n{lines}", file.trim_end()));
    }
    let wanted = format!("{key}:");
    let mut text = String::new();
    let mut found = false;
    for line in file.lines() {
        text += &format!("{line}\n");
        if !found && line.trim() == wanted {
            found = true;
            let indent = " ".repeat(line.len() - line.trim_start().len() + 2);
            lines.lines().for_each(|line| text += &format!("{indent}{line}\n"));
        }
    }
    if found { Ok(text) } else { Err(format!("there is no line `{wanted}`")) }
}

/// That a text is part of a file of the repository.
fn quoted(path: &str, text: &str) -> Result<(), String> {
    let file = repository().join(path);
    let whole = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let strip = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    if strip(&whole).contains(strip(text).trim()) { Ok(()) } else { Err(format!("this is not in {path}")) }
}

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
