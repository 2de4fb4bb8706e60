//! The loop: draws, waits for a key or for the time of the next look.

use super::board::Board;
use super::detail::{self, Detail};
use super::sample;
use super::view;
use crate::daemon::session::Session;
use crate::failure::Failure;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::time::{Duration, Instant};

/// View that the user chose.
pub struct ScreenState {
    pub ascii: bool,
    pub paused: bool,
    /// Id of the one that is chosen: it stays chosen when the order changes.
    pub chosen: Option<String>,
    /// Details of the vnic that is open.
    pub open: Option<Detail>,
    /// First line of the open one that is shown.
    pub scroll: u16,
    /// Why there is nothing new.
    pub trouble: Option<String>,
    pub interval: Duration,
}

/// Shows the board until its reader has seen enough.
pub fn run(
    session: &mut Session,
    board: &mut Board,
    interval: Duration,
    ascii: bool,
) -> Result<(), Failure> {
    let mut state = ScreenState {
        ascii,
        paused: false,
        chosen: None,
        open: None,
        scroll: 0,
        trouble: None,
        interval,
    };
    // Restores the terminal if anything panics, too.
    let mut terminal = ratatui::try_init()?;
    let outcome = watch(session, board, &mut state, &mut terminal);
    ratatui::restore();
    outcome
}

fn watch(
    session: &mut Session,
    board: &mut Board,
    state: &mut ScreenState,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Failure> {
    let mut next = Instant::now();
    loop {
        if Instant::now() >= next && !state.paused {
            look(session, board, state);
            next = Instant::now() + state.interval;
        }
        terminal.draw(|frame| view::draw(frame, board, state))?;
        let wait = if state.paused {
            state.interval
        } else {
            next.saturating_duration_since(Instant::now())
        };
        if !event::poll(wait)? {
            continue;
        }
        // What came together is drawn together.
        loop {
            let event = event::read()?;
            if let Event::Key(key) = event
                && key.kind != KeyEventKind::Release
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') => return Ok(()),
                    KeyCode::Char('c') if control => return Ok(()),
                    code => press(code, session, board, state),
                }
            }
            if !event::poll(Duration::ZERO)? {
                break;
            }
        }
    }
}

fn look(session: &mut Session, board: &mut Board, state: &mut ScreenState) {
    match sample::take(session) {
        Ok(sample) => {
            board.add(sample);
            state.trouble = None;
        }
        Err(why) => state.trouble = Some(text(why)),
    }
    if state.open.is_some() {
        open(session, board, state);
    }
}

fn text(why: Failure) -> String {
    match why {
        Failure::Said(text) | Failure::Usage(text) => {
            text.lines().next().unwrap_or_default().to_owned()
        }
        Failure::Output(error) => error.to_string(),
        Failure::Negative => String::new(),
    }
}

/// Takes more about the one that is chosen.
fn open(session: &mut Session, board: &Board, state: &mut ScreenState) {
    let nic = state.chosen.as_ref().and_then(|id| {
        let now = board.now.as_ref()?;
        Some((id, now.nics.get(id)?, &now.groups))
    });
    let Some((id, nic, groups)) = nic else {
        state.open = None;
        return;
    };
    match detail::take(id, nic, groups, session) {
        Ok(detail) => state.open = Some(detail),
        Err(why) => state.trouble = Some(text(why)),
    }
}

fn press(code: KeyCode, session: &mut Session, board: &mut Board, state: &mut ScreenState) {
    let order: Vec<String> = board.order().into_iter().map(str::to_owned).collect();
    let at = state.chosen.as_ref().and_then(|id| order.iter().position(|other| other == id));
    let choose = |at: usize| order.get(at.min(order.len().saturating_sub(1))).cloned();
    const PAGE: usize = 10;
    match (code, state.open.is_some()) {
        (KeyCode::Esc | KeyCode::Backspace | KeyCode::Left, true) => {
            (state.open, state.scroll) = (None, 0)
        }
        (KeyCode::Down | KeyCode::Char('j'), true) => state.scroll = state.scroll.saturating_add(1),
        (KeyCode::Up | KeyCode::Char('k'), true) => state.scroll = state.scroll.saturating_sub(1),
        (KeyCode::PageDown, true) => state.scroll = state.scroll.saturating_add(PAGE as u16),
        (KeyCode::PageUp, true) => state.scroll = state.scroll.saturating_sub(PAGE as u16),
        (KeyCode::Down | KeyCode::Char('j'), false) => {
            state.chosen = choose(at.map_or(0, |at| at + 1))
        }
        (KeyCode::Up | KeyCode::Char('k'), false) => {
            state.chosen = choose(at.map_or(0, |at| at.saturating_sub(1)))
        }
        (KeyCode::PageDown, false) => state.chosen = choose(at.map_or(PAGE, |at| at + PAGE)),
        (KeyCode::PageUp, false) => {
            state.chosen = choose(at.map_or(0, |at| at.saturating_sub(PAGE)))
        }
        (KeyCode::Home, false) => state.chosen = choose(0),
        (KeyCode::End, false) => state.chosen = choose(usize::MAX),
        (KeyCode::Enter | KeyCode::Right, false) => {
            if state.chosen.is_none() {
                state.chosen = choose(0);
            }
            open(session, board, state);
        }
        (KeyCode::Char('s'), _) => board.sort = board.sort.next(),
        (KeyCode::Char('p' | ' '), _) => state.paused = !state.paused,
        _ => {}
    }
}
