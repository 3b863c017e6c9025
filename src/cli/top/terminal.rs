//! The live picture: reads keys, takes in news, and draws.

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

use super::feed::{News, Question};
use super::fleet::{Fleet, Span};
use super::render::{Keys, View, draw};
use super::snapshot::Held;
use crate::cli::signals;

/// The shortest time between two pictures of news. A sum over many nodes takes milliseconds.
const FRAME: Duration = Duration::from_millis(200);

/// How often the reader of keys looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);

/// Whether a person sits at both ends.
pub(super) fn is_there() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Shows the nodes until the user quits, or a signal comes. The terminal is as before afterwards,
/// also after a panic.
///
/// # Errors
/// When the terminal cannot be used.
pub(super) async fn show(
    fleet: &mut Fleet,
    news: &mut mpsc::Receiver<(usize, News)>,
    question: &watch::Sender<Question>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal: {error}");
    let ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let mut end = signals(&ends).map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let _restore = scopeguard::guard((), |()| ratatui::restore());
    let mut keys = keys();
    let mut view = View {
        span: Span { minutes: 1, policy: None },
        chosen: None,
        shows_help: false,
        keys: Keys::Denied,
        has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let (mut frames, mut is_stale) = (interval(FRAME), true);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some((place, new)) = news.recv() => {
                fleet.note(place, new);
                is_stale = true;
            }
            key = keys.recv() => {
                if key.is_none_or(|key| press(&mut view, key, fleet)) {
                    return Ok(());
                }
                paint(&mut terminal, fleet, &mut view, question).map_err(failed)?;
            }
            _ = end.recv() => return Ok(()),
            _ = frames.tick() => {
                if std::mem::take(&mut is_stale) {
                    paint(&mut terminal, fleet, &mut view, question).map_err(failed)?;
                }
            }
        }
    }
}

/// Draws the picture, and asks for what it shows beside the snapshots.
fn paint(
    terminal: &mut DefaultTerminal,
    fleet: &Fleet,
    view: &mut View,
    question: &watch::Sender<Question>,
) -> std::io::Result<()> {
    let mut sum = fleet.sum(&view.span);
    let rows = if view.keys == Keys::Held { sum.held.len() } else { sum.top.len() };
    view.chosen = view.chosen.zip(rows.checked_sub(1)).map(|(chosen, last)| chosen.min(last));
    let holders = view.chosen_held(&sum).and_then(Held::in_clear);
    sum.holders = holders.as_ref().map_or_else(Vec::new, |name| fleet.holders(name).to_vec());
    let asked = Question { keys: view.span.question(), holders };
    question.send_if_modified(|before| {
        let is_new = *before != asked;
        *before = asked;
        is_new
    });
    terminal.draw(|frame| draw(frame, &sum, view)).map(drop)
}

/// Returns true for the key that ends the command.
fn press(view: &mut View, key: KeyCode, fleet: &Fleet) -> bool {
    match key {
        KeyCode::Char('q') => return true,
        KeyCode::Esc if !view.shows_help => return true,
        KeyCode::Char('?') => view.shows_help = !view.shows_help,
        KeyCode::Esc => view.shows_help = false,
        KeyCode::Char('j') | KeyCode::Down => view.chosen = Some(view.chosen.map_or(0, |chosen| chosen + 1)),
        KeyCode::Char('k') | KeyCode::Up => view.chosen = view.chosen.and_then(|chosen| chosen.checked_sub(1)),
        KeyCode::Char('1') => view.span.minutes = 1,
        KeyCode::Char('5') => view.span.minutes = 5,
        KeyCode::Char('m') => view.span.minutes = 15,
        KeyCode::Char('u') => view.show_keys(Keys::Used),
        KeyCode::Char('h') => view.show_keys(Keys::Held),
        KeyCode::Char('p') => {
            let policies = fleet.sum(&view.span).policies;
            let next = match &view.span.policy {
                None => policies.first(),
                Some(policy) => policies.iter().find(|next| *next > policy),
            };
            view.span.policy = next.cloned();
            view.chosen = None;
        }
        _ => {}
    }
    false
}

/// The pressed keys. A thread waits for them, since the terminal has no other way.
fn keys() -> mpsc::Receiver<KeyCode> {
    let (sender, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let key = match event::poll(LOOK) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let sent = match key {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    sender.blocking_send(if is_interrupt { KeyCode::Char('q') } else { key.code })
                }
                // Another size, for instance, which needs another picture.
                Ok(_) => sender.blocking_send(KeyCode::Null),
                Err(_) => return,
            };
            if sent.is_err() {
                return;
            }
        }
    });
    keys
}
