//! The terminal: keys in, pictures out. The gateway is asked on a thread of its own, so that a slow answer holds no key
//! up.

use std::io::{self, Stdout, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};

use super::super::client::Client;
use super::super::{Failure, What};
use super::model::{Order, Page};
use super::screen::{Line, Look, View, picture};

/// How often the gateway is asked.
const REFRESH: Duration = Duration::from_secs(1);
/// How long to wait for a key before looking for news.
const GLANCE: Duration = Duration::from_millis(100);

type News = Result<Page, String>;

/// Shows it until somebody quits.
pub(super) fn run(client: Client) -> Result<(), Failure> {
    let admin = client.base().to_owned();
    // The first page is fetched before the screen changes, so that a wrong address is told as everywhere else.
    let first = Page::fetch(&client, None)?;
    let selected = Arc::new(Mutex::new(first.live.services.keys().next().cloned()));
    let (news, heard) = channel();
    let (wake, woken) = channel();
    let wanted = Arc::clone(&selected);
    std::thread::spawn(move || ask(&client, &wanted, &news, &woken));
    let view =
        View { admin, page: Some(first), trouble: None, order: Order::Name, paused: false, help: false, selected: 0 };
    let failed = |error: io::Error| Failure::failed(format!("the terminal cannot be used: {error}"));
    let mut screen = Screen::take().map_err(failed)?;
    let shown = show(&mut screen, view, &heard, &selected, &wake);
    // Before anything is said of what went wrong.
    drop(screen);
    shown.map_err(failed)
}

/// The terminal while it is taken; dropping it gives it back as it was, after a panic as well.
struct Screen {
    out: Stdout,
    colour: bool,
}

impl Screen {
    fn take() -> io::Result<Self> {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Self { out: io::stdout(), colour };
        terminal::enable_raw_mode()?;
        execute!(screen.out, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn draw(&mut self, view: &View) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        for (y, line) in (0..height).zip(picture(view, width.into(), height.into())) {
            queue!(self.out, MoveTo(0, y))?;
            self.write(&line)?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        self.out.flush()
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        for (text, look) in line.0.iter().filter(|(text, _)| !text.is_empty()) {
            match look {
                Look::Bold => queue!(self.out, SetAttribute(Attribute::Bold))?,
                Look::Dim => queue!(self.out, SetAttribute(Attribute::Dim))?,
                Look::Selected => queue!(self.out, SetAttribute(Attribute::Reverse))?,
                look if self.colour && look.is_colour() => queue!(self.out, SetForegroundColor(colour(*look)))?,
                _ => {}
            }
            queue!(self.out, Print(text), SetAttribute(Attribute::Reset))?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to give back.
        let _ = execute!(self.out, Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn colour(look: Look) -> Color {
    match look {
        Look::Good => Color::DarkGreen,
        Look::Bad => Color::DarkRed,
        Look::Warning => Color::DarkYellow,
        _ => Color::DarkCyan,
    }
}

/// Asks again and again, at once when something else is selected, until nobody listens.
fn ask(client: &Client, service: &Mutex<Option<String>>, news: &Sender<News>, wake: &Receiver<()>) {
    loop {
        let name = service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let page = Page::fetch(client, name.as_deref()).map_err(|failure| words(&failure));
        if news.send(page).is_err() {
            return;
        }
        if wake.recv_timeout(REFRESH) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn words(failure: &Failure) -> String {
    match &failure.what {
        What::Message(message) => message.clone(),
        What::Refused(document) => document.detail.clone(),
        What::Documents(problems) => problems.to_string(),
    }
}

fn show(
    screen: &mut Screen,
    mut view: View,
    heard: &Receiver<News>,
    selected: &Mutex<Option<String>>,
    wake: &Sender<()>,
) -> io::Result<()> {
    loop {
        screen.draw(&view)?;
        loop {
            let news: Vec<News> = heard.try_iter().collect();
            let is_news = !news.is_empty();
            news.into_iter().for_each(|news| take(&mut view, news));
            let key = if event::poll(GLANCE)? { Some(event::read()?) } else { None };
            match key.as_ref().map(|event| react(&mut view, event)) {
                Some(Reaction::Quit) => return Ok(()),
                Some(Reaction::Draw) => break,
                Some(Reaction::Nothing) | None if is_news => break,
                Some(Reaction::Nothing) | None => {}
            }
        }
        let service = view.service();
        let mut selected = selected.lock().unwrap_or_else(PoisonError::into_inner);
        if *selected != service {
            *selected = service;
            // If the thread is gone, there is no news either.
            let _ = wake.send(());
        }
    }
}

/// Takes over what was fetched. The row that is selected stays selected, wherever it is now.
fn take(view: &mut View, news: News) {
    match news {
        Err(trouble) => view.trouble = Some(trouble),
        Ok(_) if view.paused => view.trouble = None,
        Ok(page) => {
            keeping_selection(view, |view| view.page = Some(page));
            view.trouble = None;
        }
    }
}

fn keeping_selection(view: &mut View, change: impl FnOnce(&mut View)) {
    let name = |view: &View| view.rows().get(view.selected).map(|row| (row.service.clone(), row.subset.clone()));
    let before = name(view);
    change(view);
    let rows = view.rows();
    let same = rows.iter().position(|row| before == Some((row.service.clone(), row.subset.clone())));
    view.selected = same.unwrap_or(view.selected).min(rows.len().saturating_sub(1));
}

#[derive(Debug, PartialEq, Eq)]
enum Reaction {
    Quit,
    Draw,
    Nothing,
}

fn react(view: &mut View, event: &Event) -> Reaction {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        // Another size, for one.
        return Reaction::Draw;
    };
    let last = view.rows().len().saturating_sub(1);
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Reaction::Quit,
        KeyCode::Char('q') => return Reaction::Quit,
        KeyCode::Char('?' | 'h') => view.help = !view.help,
        KeyCode::Esc if view.help => view.help = false,
        KeyCode::Down | KeyCode::Char('j') => view.selected = (view.selected + 1).min(last),
        KeyCode::Up | KeyCode::Char('k') => view.selected = view.selected.saturating_sub(1),
        KeyCode::Home | KeyCode::Char('g') => view.selected = 0,
        KeyCode::End | KeyCode::Char('G') => view.selected = last,
        KeyCode::Char('s') => keeping_selection(view, |view| view.order = view.order.next()),
        KeyCode::Char('p' | ' ') => view.paused = !view.paused,
        _ => return Reaction::Nothing,
    }
    Reaction::Draw
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::page;
    use super::super::screen::tests::view;
    use super::*;

    fn press(view: &mut View, keys: &str) -> Reaction {
        let key = |c| Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        keys.chars().map(key).fold(Reaction::Nothing, |_, event| react(view, &event))
    }

    #[test]
    fn keys_do_what_they_say() {
        let mut view = view();
        assert_eq!((press(&mut view, "jj"), view.selected), (Reaction::Draw, 2));
        assert_eq!((press(&mut view, "s"), view.order, view.selected), (Reaction::Draw, Order::Requests, 4));
        assert_eq!((press(&mut view, "jjj"), view.selected), (Reaction::Draw, 4));
        assert_eq!(view.service().as_deref(), Some("users"));
        press(&mut view, "kkkkkkk");
        assert_eq!((view.selected, view.service().as_deref()), (0, Some("orders")));
        press(&mut view, "?p");
        assert!(view.help && view.paused);
        take(&mut view, Err("gone".to_owned()));
        assert_eq!(view.trouble.as_deref(), Some("gone"));
        take(&mut view, Ok(Page { instances: Vec::new(), ..page() }));
        assert!(view.trouble.is_none());
        assert_eq!(press(&mut view, "x"), Reaction::Nothing);
        assert_eq!(press(&mut view, "q"), Reaction::Quit);
        let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(react(&mut view, &ctrl_c), Reaction::Quit);
        assert_eq!(react(&mut view, &Event::Resize(80, 24)), Reaction::Draw);
    }

    #[test]
    fn a_page_without_services_has_nothing_to_select() {
        let mut view = view();
        press(&mut view, "jjjj");
        let mut page = page();
        page.live.services.clear();
        take(&mut view, Ok(page));
        assert_eq!((view.selected, view.service()), (0, None));
        press(&mut view, "jk");
    }
}
