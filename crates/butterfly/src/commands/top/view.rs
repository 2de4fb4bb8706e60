//! Look of the screen. Nothing is told by colour alone, so that it reads without.

use super::board::{Board, HISTORY, Rates, bars, short};
use super::detail::Detail;
use super::once::summary;
use super::sample::NicCounts;
use super::screen::ScreenState;
use crate::text::table::{counted, safe};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, board: &Board, state: &ScreenState) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    let mark = match (&state.trouble, state.paused) {
        (Some(why), _) => format!("NO ANSWER: {why}"),
        (None, true) => "paused".to_owned(),
        (None, false) => String::new(),
    };
    frame.render_widget(Paragraph::new(format!("{}\n{mark}", summary(board))).style(BOLD), head);
    let keys = match (&state.chosen, &state.open) {
        (Some(id), Some(detail)) => {
            opened(frame, body, board, state, id, detail);
            "Esc back  arrows scroll  p pause  q quit".to_owned()
        }
        _ => {
            nics(frame, body, board, state);
            format!("arrows choose  Enter open  s sorted by {}  p pause  q quit", board.sort.name())
        }
    };
    frame.render_widget(Paragraph::new(keys).style(REVERSED), foot);
}

/// Columns that are left out one after the other where there is no room: width, and rank.
const COLUMNS: [(&str, u16, u8); 10] = [
    ("nic", 12, 0),
    ("vni", 8, 5),
    ("machine", 8, 6),
    ("in/s", 6, 0),
    ("bit/s", 6, 3),
    ("out/s", 6, 0),
    ("bit/s", 6, 3),
    ("drops/s", 7, 1),
    ("sessions", 8, 2),
    ("last looks", 20, 4),
];

/// Which columns fit into a width.
fn fitting(width: u16) -> [bool; COLUMNS.len()] {
    let mut shown = [true; COLUMNS.len()];
    for rank in (1..=6).rev() {
        let needed: u16 = COLUMNS
            .iter()
            .zip(shown)
            .filter(|(_, shown)| *shown)
            .map(|((_, width, _), _)| width + 1)
            .sum();
        if needed <= width + 1 {
            break;
        }
        for (column, shown) in COLUMNS.iter().zip(shown.iter_mut()) {
            *shown &= column.2 != rank;
        }
    }
    shown
}

fn nics(frame: &mut Frame<'_>, area: Rect, board: &Board, state: &ScreenState) {
    let Some(now) = &board.now else { return };
    let shown = fitting(area.width);
    let order = board.order();
    let bar_width = usize::from(COLUMNS.last().map_or(0, |column| column.1));
    let rows = order.iter().filter_map(|id| {
        let (nic, rates) = (now.nics.get(*id)?, board.rates.get(*id).copied().unwrap_or_default());
        let cells = row(
            id,
            nic,
            &rates,
            board
                .history
                .get(*id)
                .map(|history| bars(history, bar_width, state.ascii))
                .unwrap_or_default(),
        );
        Some(Row::new(
            cells
                .into_iter()
                .zip(shown)
                .filter(|(_, shown)| *shown)
                .map(|(cell, _)| Cell::from(cell)),
        ))
    });
    let chosen: Vec<_> =
        COLUMNS.iter().zip(shown).filter(|(_, shown)| *shown).map(|(column, _)| column).collect();
    let widths = chosen.iter().enumerate().map(|(n, (_, width, _))| {
        if n == 0 { Constraint::Min(*width) } else { Constraint::Length(*width) }
    });
    let heading = Row::new(chosen.iter().map(|(name, width, _)| match *name {
        "nic" | "machine" | "last looks" => Line::from(*name),
        name => Line::from(format!("{name:>width$}", width = usize::from(*width))),
    }));
    let table = Table::new(rows, widths)
        .header(heading.style(BOLD))
        .row_highlight_style(REVERSED)
        .column_spacing(1);
    let at = state.chosen.as_ref().and_then(|id| order.iter().position(|other| other == id));
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn row(id: &str, nic: &NicCounts, rates: &Rates, bars: String) -> [Text<'static>; COLUMNS.len()] {
    let right = |text: String| Text::from(text).right_aligned();
    [
        safe(id).into(),
        right(nic.vni.to_string()),
        nic.behind().into(),
        right(short(rates.from.0)),
        right(short(rates.from.1 * 8.0)),
        right(short(rates.to.0)),
        right(short(rates.to.1 * 8.0)),
        right(short(rates.drops)),
        right(nic.sessions.to_string()),
        bars.into(),
    ]
}

fn opened(
    frame: &mut Frame<'_>,
    area: Rect,
    board: &Board,
    state: &ScreenState,
    id: &str,
    detail: &Detail,
) {
    let Some(nic) = board.now.as_ref().and_then(|now| now.nics.get(id)) else { return };
    let rates = board.rates.get(id).copied().unwrap_or_default();
    let mut lines = vec![
        Line::styled(
            format!(
                "{}  VNI {}  {}",
                safe(id),
                nic.vni,
                if nic.behind() == "-" { "no machine" } else { nic.behind() }
            ),
            BOLD,
        ),
        Line::from(format!(
            "in {} packets/s {}bit/s   out {} packets/s {}bit/s   {} drops/s   {}",
            short(rates.from.0),
            short(rates.from.1 * 8.0),
            short(rates.to.0),
            short(rates.to.1 * 8.0),
            short(rates.drops),
            counted(nic.sessions.into(), "session")
        )),
    ];
    if let Some(history) = board.history.get(id) {
        lines.push(Line::from(bars(history, HISTORY.min(area.width.into()), state.ascii)));
    }
    lines.push(Line::styled("drops", BOLD));
    let drop_rates = board.drop_rates.get(id);
    for (reason, (count, meaning)) in &nic.drops {
        let rate = drop_rates.and_then(|rates| rates.get(reason)).copied().unwrap_or(0.0);
        lines.push(Line::from(format!(
            "  {:<18} {count:>10} {:>7}/s  {}",
            safe(reason),
            short(rate),
            safe(meaning)
        )));
    }
    if nic.drops.is_empty() {
        lines.push(Line::from("  none"));
    }
    lines.push(Line::styled("rules, and the sessions that they admitted", BOLD));
    match (nic.filtered, detail.rules.is_empty()) {
        (false, _) if nic.is_wire => {
            lines.push(Line::from("  none: a wire is not filtered, the NICs behind routers are"));
        }
        (false, _) => lines.push(Line::from("  not filtered")),
        (true, true) => lines.push(Line::from("  none: nothing may reach it")),
        (true, false) => {
            lines.extend(detail.rules.iter().map(|(group, rule, n)| {
                Line::from(format!("  {n:>10}  {}: {}", safe(group), safe(rule)))
            }));
        }
    }
    lines.push(Line::styled(
        format!("sessions ({} of {})", detail.sessions.len(), detail.matching),
        BOLD,
    ));
    for [network, protocol, opener, responder, state, age, idle, ..] in &detail.sessions {
        lines.push(Line::from(format!(
            "  {network:<8} {protocol:<6} {opener} > {responder}  {state}, {age} old, idle {idle}"
        )));
    }
    let most = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(area.height);
    frame.render_widget(Paragraph::new(lines).scroll((state.scroll.min(most), 0)), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_where_there_is_no_room() {
        let names = |width| {
            let shown = fitting(width);
            COLUMNS
                .iter()
                .zip(shown)
                .filter(|(_, shown)| *shown)
                .map(|(column, _)| column.0)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            names(120),
            "nic vni machine in/s bit/s out/s bit/s drops/s sessions last looks"
        );
        assert_eq!(names(96), "nic vni machine in/s bit/s out/s bit/s drops/s sessions last looks");
        assert_eq!(names(80), "nic in/s bit/s out/s bit/s drops/s sessions last looks");
        assert_eq!(names(40), "nic in/s out/s drops/s");
        assert_eq!(names(1), "nic in/s out/s");
    }
}
