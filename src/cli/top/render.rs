//! The picture of a sum on a terminal: a header, the decisions, the denied keys and the shards.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span as Text};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState};

use super::fleet::{Decisions, NodeRow, PolicyRow, Rates, ShardRow, Span, Sum};
use super::numbers::{bytes, count, micros, short, sparkline};
use super::snapshot::{Held, Holder, KeyRow};
use crate::config::visible;

/// The most rows of decisions and of shards on a low terminal.
const FEW: usize = 6;

/// From so many columns on each table has another one beside it.
const WIDE: u16 = 140;

/// The picture's choices.
#[derive(Debug)]
pub(super) struct View {
    pub(super) span: Span,
    /// The chosen row of the denied keys, if one is.
    pub(super) chosen: Option<usize>,
    pub(super) shows_help: bool,
    /// The keys that a narrow terminal shows.
    pub(super) keys: Keys,
    /// False: the terminal's own colours only.
    pub(super) has_colours: bool,
}

/// A list of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    Denied,
    Used,
    /// A wide terminal shows them instead of those that used most.
    Held,
}

/// Draws the whole picture.
pub(super) fn draw(frame: &mut Frame<'_>, sum: &Sum, view: &View) {
    let area = frame.area();
    let most = (usize::from(area.height) / 5).max(FEW) - 1;
    let rows = |rows: usize| Constraint::Length(u16::try_from(rows.clamp(1, most) + 2).unwrap_or(u16::MAX));
    let parts = [
        Constraint::Length(3),
        rows(if area.width >= WIDE { sum.decisions.len().max(sum.by_policy.len()) } else { sum.decisions.len() }),
        Constraint::Min(4),
        rows(if area.width >= WIDE { sum.shards.len().max(sum.nodes.len()) } else { sum.shards.len() }),
        Constraint::Length(1),
    ];
    let [header, decisions, keys, shards, footer] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head(sum, view)), header);
    if area.width >= WIDE {
        let [decisions, policies] = beside(decisions);
        draw_decisions(frame, decisions, &sum.decisions, view);
        draw_policies(frame, policies, &sum.by_policy);
        let [denied, uses] = beside(keys);
        draw_denied(frame, denied, sum, view);
        match view.keys {
            Keys::Held => draw_held(frame, uses, sum, view),
            Keys::Denied | Keys::Used => draw_uses(frame, uses, sum, view),
        }
        let [shards, nodes] = beside(shards);
        draw_shards(frame, shards, &sum.shards, view);
        draw_nodes(frame, nodes, &sum.nodes, view);
    } else {
        draw_decisions(frame, decisions, &sum.decisions, view);
        match view.keys {
            Keys::Denied => draw_denied(frame, keys, sum, view),
            Keys::Used => draw_uses(frame, keys, sum, view),
            Keys::Held => draw_held(frame, keys, sum, view),
        }
        draw_shards(frame, shards, &sum.shards, view);
    }
    frame.render_widget(Paragraph::new(foot(sum, view)), footer);
    if view.shows_help {
        draw_help(frame, area);
    }
}

fn head<'a>(sum: &'a Sum, view: &View) -> Vec<Line<'a>> {
    let policy = view
        .span
        .policy
        .as_deref()
        .map_or("all policies".to_owned(), |name| format!("policy {}", visible(name)));
    let minutes = format!("{} min", view.span.minutes);
    let mut first = vec![Text::from("tollgate top").bold(), format!("   {policy}   last {minutes}").into()];
    if !sum.versions.is_empty() {
        let version = |version: &String| visible(version).chars().take(12).collect::<String>();
        let versions: Vec<_> = sum.versions.iter().map(version).collect();
        first.push(match &versions[..] {
            [one] => format!("   policies {one}").into(),
            several => view.alarm(format!("   policies differ: {}", several.join(", "))),
        });
    }
    let lost: Vec<_> = sum.nodes.iter().filter_map(|node| Some((node, node.reason.as_ref()?))).collect();
    let up = sum.nodes.len() - lost.len();
    let mut second = vec![format!("nodes {up}/{} up", sum.nodes.len()).into()];
    match sum.status.as_str() {
        "" => {}
        "ok" => second.push("   status ok".into()),
        status => second.push(view.alarm(format!("   status {}", visible(status)))),
    }
    if let Some((node, reason)) = lost.first() {
        second.push(view.alarm(format!("   trying again: {}: {}", visible(&node.url), visible(reason))));
    }
    let rate = |is: fn(&str) -> bool| sum.decisions.iter().filter(|row| is(&row.outcome)).map(|row| row.rate).sum();
    let shadow = match rate(|outcome| outcome == "shadow") {
        0 => String::new(),
        shadow => format!("   shadow {}/s", count(shadow)),
    };
    let units = sum.by_policy.iter().map(|row| row.rates.units).sum();
    let third = format!(
        "checks {}/s   units {}/s   allowed {}/s   denied {}/s{shadow}   p50 {}   p99 {}",
        count(rate(|_| true)),
        count(units),
        count(rate(|outcome| outcome == "allowed")),
        count(rate(|outcome| outcome == "denied")),
        sum.p50_us.map_or("-".to_owned(), micros),
        sum.p99_us.map_or("-".to_owned(), micros),
    );
    vec![first.into(), second.into(), third.into()]
}

fn draw_decisions(frame: &mut Frame<'_>, area: Rect, decisions: &[Decisions], view: &View) {
    let widths = [10, 10, 9, 11].map(Constraint::Length);
    let taken: u16 = 10 + 10 + 9 + 11 + 4;
    let trend = usize::from(area.width.saturating_sub(taken));
    let rows = decisions.iter().map(|row| {
        let style = if row.outcome == "allowed" { Style::new() } else { view.colour(Color::Yellow) };
        Row::new([
            Line::from(visible(&row.source)),
            Line::from(visible(&row.outcome)),
            right(count(row.rate)),
            right(count(row.total)),
            Line::from(sparkline(&row.history, trend)),
        ])
        .style(style)
    });
    let names = ["SOURCE".into(), "OUTCOME".into(), right("PER S"), right("IN ALL"), Line::from("TREND")];
    let widths: Vec<_> = widths.into_iter().chain([Constraint::Fill(1)]).collect();
    let table = Table::new(rows, widths).header(Row::new(names).style(DIM)).block(titled("decisions"));
    frame.render_widget(table, area);
}

fn draw_denied(frame: &mut Frame<'_>, area: Rect, sum: &Sum, view: &View) {
    let texts = ["keys denied most", "no key was denied", "DENIED", "AT LEAST"];
    let chosen = view.chosen.filter(|_| view.keys != Keys::Held);
    draw_keys(frame, area, &sum.top, texts, view.span.minutes, chosen);
}

fn draw_uses(frame: &mut Frame<'_>, area: Rect, sum: &Sum, view: &View) {
    let texts = ["keys that used most", "no key used a unit", "UNITS", "CHECKS"];
    draw_keys(frame, area, &sum.consumers, texts, view.span.minutes, None);
}

/// `texts`: the title, the text without keys, and the names of the counts.
fn draw_keys<R: KeyRow>(
    frame: &mut Frame<'_>,
    area: Rect,
    keys: &[R],
    texts: [&'static str; 4],
    minutes: u64,
    chosen: Option<usize>,
) {
    let [title, none, first, second] = texts;
    let title = cut(format!("{title}, last {minutes} min"), area, keys.len());
    if keys.is_empty() {
        frame.render_widget(Paragraph::new(none).style(DIM).block(titled(title)), area);
        return;
    }
    let rows = keys.iter().map(|row| (row.name(), row.clone().counts().map(|number| count(*number))));
    let table = key_table(rows, [first, second]).block(titled(title));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

/// The keys with places in use, and below them the holders of the chosen one.
fn draw_held(frame: &mut Frame<'_>, area: Rect, sum: &Sum, view: &View) {
    let held = &sum.held;
    let mut area = area;
    if let Some(chosen) = view.chosen_held(sum) {
        let [keys, below] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        draw_holders(frame, below, chosen, &sum.holders);
        area = keys;
    }
    let title = cut("keys with places in use".into(), area, held.len());
    let limit = |held: &Held| held.in_flight_limit.map_or("-".to_owned(), count);
    let rows = held.iter().map(|held| (held.name(), [count(held.in_flight), limit(held)]));
    let table = key_table(rows, ["IN FLIGHT", "PLACES"]).block(titled(title));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(view.chosen));
}

fn draw_holders(frame: &mut Frame<'_>, area: Rect, held: &Held, holders: &[Holder]) {
    let seconds = |ms: u64| right(format!("{:.1} s", ms as f64 / 1000.0));
    let rows = holders.iter().map(|Holder { id, age_ms, cost, expires_in_ms }| {
        Row::new([Line::from(visible(id)), seconds(*age_ms), right(count(*cost)), seconds(*expires_in_ms)])
    });
    let names = [Line::from("HOLDER"), right("FOR"), right("COST"), right("EXPIRES IN")];
    let widths = [Constraint::Fill(1), Constraint::Length(11), Constraint::Length(11), Constraint::Length(11)];
    let title = if held.key.is_some() { "its holders" } else { "its holders: the node hides the key" };
    let title = cut(title.into(), area, holders.len());
    let table = Table::new(rows, widths).header(Row::new(names).style(DIM)).block(titled(title));
    frame.render_widget(table, area);
}

/// A table of names of keys, each with two counts.
fn key_table<'a>(
    rows: impl Iterator<Item = ((&'a str, &'a str), [String; 2])>,
    [first, second]: [&'static str; 2],
) -> Table<'a> {
    let rows = rows.map(|((policy, key), [first, second])| {
        Row::new([Line::from(visible(policy)), Line::from(visible(key)), right(first), right(second)])
    });
    let names = [Line::from("POLICY"), Line::from("KEY"), right(first), right(second)];
    let widths = [Constraint::Length(16), Constraint::Fill(1), Constraint::Length(11), Constraint::Length(11)];
    Table::new(rows, widths).header(Row::new(names).style(DIM)).row_highlight_style(Modifier::REVERSED)
}

fn draw_policies(frame: &mut Frame<'_>, area: Rect, policies: &[PolicyRow]) {
    let rows = policies.iter().map(|row| Row::new(rated(visible(&row.policy), row.rates)));
    draw_rates(frame, area, "POLICY", cut("policies".into(), area, policies.len()), rows.collect());
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, nodes: &[NodeRow], view: &View) {
    let row = |node: &NodeRow| match node.up {
        true => Row::new(rated(visible(&node.url), node.rates)),
        false => Row::new([Line::from(view.alarm(visible(&node.url))), view.alarm("away".into()).into()]),
    };
    draw_rates(frame, area, "NODE", cut("nodes".into(), area, nodes.len()), nodes.iter().map(row).collect());
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, name: &'static str, title: String, rows: Vec<Row<'_>>) {
    let names = ["CHECKS/S", "DENIED/S", "SHADOW/S", "UNITS/S"].map(right);
    let names = [Line::from(name)].into_iter().chain(names);
    let widths = [Constraint::Fill(1)].into_iter().chain([Constraint::Length(9); 4]);
    let table = Table::new(rows, widths).header(Row::new(names).style(DIM)).block(titled(title));
    frame.render_widget(table, area);
}

/// A name with rates, in five columns.
fn rated<'a>(name: String, Rates { checks, denied, shadow, units }: Rates) -> [Line<'a>; 5] {
    let [checks, denied, shadow, units] = [checks, denied, shadow, units].map(|rate| right(short(rate)));
    [Line::from(name), checks, denied, shadow, units]
}

/// Two halves of an area, with a gap.
fn beside(area: Rect) -> [Rect; 2] {
    Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(area)
}

/// The title of a table, with the number of its rows if some do not fit.
fn cut(title: String, area: Rect, rows: usize) -> String {
    let shown = usize::from(area.height.saturating_sub(2));
    if shown < rows { format!("{title}, {shown} of {rows}") } else { title }
}

fn draw_shards(frame: &mut Frame<'_>, area: Rect, shards: &[ShardRow], view: &View) {
    if shards.is_empty() {
        let none = Paragraph::new("no shard: the store is in the nodes, or not known yet");
        frame.render_widget(none.style(DIM).block(titled("shards")), area);
        return;
    }
    // A low terminal cuts off the last ones, so shards in trouble come first.
    let (well, troubled): (Vec<_>, Vec<_>) =
        shards.iter().partition(|shard| shard.up == shard.nodes && shard.open == 0);
    let rows = troubled.into_iter().chain(well).map(|shard| {
        let state = match (shard.up, shard.open) {
            (up, _) if up < shard.nodes => view.alarm(format!("down {}/{}", shard.nodes - up, shard.nodes)),
            (_, 0) => "up".into(),
            (_, open) => view.alarm(format!("open {open}/{}", shard.nodes)),
        };
        let server = &shard.server;
        let known = |number: Option<u64>, text: fn(u64) -> String| right(number.map_or("-".to_owned(), text));
        Row::new([
            Line::from(visible(&shard.address)),
            Line::from(state),
            right(short(shard.queued)),
            right(shard.clock_offset_us.map_or("-".to_owned(), offset)),
            right(short(shard.errors)),
            known(server.operations_per_s, short),
            known(server.memory_bytes, bytes),
            known(server.replication_lag_bytes, bytes),
            known(server.keys, short),
        ])
    });
    let names = ["QUEUED", "CLOCK", "ERRORS", "OPS/S", "MEMORY", "LAG", "KEYS"].map(right);
    let names = ["SHARD", "STATE"].map(Line::from).into_iter().chain(names);
    let widths = [8, 6, 8, 6, 6, 6, 6, 6].map(Constraint::Length);
    let widths: Vec<_> = [Constraint::Fill(1)].into_iter().chain(widths).collect();
    let title = cut("shards".into(), area, shards.len());
    let table = Table::new(rows, widths).header(Row::new(names).style(DIM)).block(titled(title));
    frame.render_widget(table, area);
}

/// The chosen key in full, which a narrow column may cut off, or else the keys to press.
fn foot<'a>(sum: &Sum, view: &View) -> Line<'a> {
    let keys = "q quit   j k move   1 5 m minutes   p policy   u units   h places   ? help";
    let denied = view.chosen.filter(|_| view.keys != Keys::Held).and_then(|chosen| sum.top.get(chosen));
    let named = denied.map(|denied| (denied.name(), &denied.key_hash));
    match named.or_else(|| view.chosen_held(sum).map(|held| (held.name(), &held.key_hash))) {
        Some(((policy, key), hash)) => format!("{}   {}   {}", visible(policy), visible(key), visible(hash)).into(),
        None => Line::from(keys).style(DIM),
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines = [
        "q            quit",
        "j k, arrows  choose a key; the last line shows it in full",
        "1 5 m        the last 1, 5 or 15 minutes",
        "p            the next policy, or all",
        "u            the keys that used most units, or those denied most",
        "h            the keys with places in use; j shows who holds them",
        "?            this help",
        "",
        "PER S, p50 and p99 are of the newest second; p50 and p99 of the",
        "slowest node. CLOCK is the shard's clock minus the node's. Keys",
        "are hashes, unless the token is an admin's or the node records",
        "keys. DENIED is an estimate, never too small.",
    ];
    let (width, height) = (68, u16::try_from(lines.len() + 2).unwrap_or(u16::MAX));
    let [row] = Layout::vertical([Constraint::Length(height)]).flex(ratatui::layout::Flex::Center).areas(area);
    let [place] = Layout::horizontal([Constraint::Length(width)]).flex(ratatui::layout::Flex::Center).areas(row);
    frame.render_widget(Clear, place);
    let help = Paragraph::new(lines.map(Line::from).to_vec()).block(Block::bordered().title(" help "));
    frame.render_widget(help, place);
}

impl View {
    /// Shows these keys, or the denied ones again.
    pub(super) fn show_keys(&mut self, keys: Keys) {
        self.keys = if self.keys == keys { Keys::Denied } else { keys };
        self.chosen = None;
    }

    /// The chosen key with places in use.
    pub(super) fn chosen_held<'a>(&self, sum: &'a Sum) -> Option<&'a Held> {
        self.chosen.filter(|_| self.keys == Keys::Held).and_then(|chosen| sum.held.get(chosen))
    }

    fn colour(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// A text that needs attention. Bold marks it also without colours.
    fn alarm<'a>(&self, text: String) -> Text<'a> {
        Text::styled(text, self.colour(Color::Red).bold())
    }
}

const DIM: Style = Style::new().add_modifier(Modifier::DIM);

fn titled<'a>(title: impl Into<String>) -> Block<'a> {
    Block::new().borders(Borders::TOP).title(Line::from(format!(" {} ", title.into())).bold())
}

fn right<'a>(text: impl Into<std::borrow::Cow<'a, str>>) -> Line<'a> {
    Line::from(text.into()).right_aligned()
}

/// `+1.2 ms`.
fn offset(us: i64) -> String {
    format!("{}{}", if us < 0 { "-" } else { "+" }, micros(us.unsigned_abs())).replace(' ', "")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    use super::super::fleet::NodeRow;
    use super::super::snapshot::Server;
    use super::super::snapshot::{Consumer, Denied};
    use super::*;

    fn node(url: &str, reason: Option<&str>) -> NodeRow {
        let (url, reason) = (url.to_owned(), reason.map(str::to_owned));
        let rates = Rates { checks: 1_500, denied: 12, shadow: 0, units: 9_000 };
        NodeRow { url, up: reason.is_none(), reason, status: None, version: None, uptime_s: None, rates }
    }

    fn row(source: &str, outcome: &str, rate: u64) -> Decisions {
        let (source, outcome) = (source.to_owned(), outcome.to_owned());
        Decisions { source, outcome, rate, total: 60 * rate, history: (0..59).collect() }
    }

    fn sum() -> Sum {
        let denied = |number: u64| Denied {
            policy: "login".into(),
            key: Some(format!("203.0.113.{number}")),
            key_hash: "9f00aa".into(),
            denied: 123_456 - number,
            at_least: 1000,
        };
        let server = Server { memory_bytes: Some(3 << 20), operations_per_s: Some(12_345), ..Server::default() };
        let shard = |port: u64| ShardRow {
            address: format!("127.0.0.1:{port}"),
            nodes: 2,
            up: if port == 7003 { 1 } else { 2 },
            clock_offset_us: Some(-1_250),
            server: server.clone(),
            ..ShardRow::default()
        };
        Sum {
            at: 100,
            nodes: vec![node("http://a:1", None), node("http://b:1", Some("connection refused"))],
            status: "ok".into(),
            versions: BTreeSet::from(["f3a9b2c4d5e6f7".to_owned()]),
            p50_us: Some(21),
            p99_us: Some(4_100),
            decisions: vec![row("store", "allowed", 1_234), row("prefilter", "denied", 812)],
            top: (1..=30).map(denied).collect(),
            consumers: vec![Consumer {
                policy: "login".into(),
                key: Some("198.51.100.7".into()),
                key_hash: "8e".into(),
                units: 54_321,
                checks: 400,
            }],
            by_policy: vec![PolicyRow {
                policy: "login".into(),
                rates: Rates { checks: 2_046, denied: 812, shadow: 3, units: 4_321 },
            }],
            shards: [7001, 7002, 7003].map(shard).into(),
            ..Sum::default()
        }
    }

    fn view() -> View {
        let span = Span { minutes: 1, policy: None };
        View { span, chosen: None, shows_help: false, keys: Keys::Denied, has_colours: false }
    }

    fn drawn(width: u16, height: u16, sum: &Sum, view: &View) -> (Vec<String>, Buffer) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, sum, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        ((0..height).map(line).collect(), buffer)
    }

    /// The column where `text` begins, in the lines that have it.
    fn column(lines: &[String], text: &str) -> Vec<usize> {
        let place = |line: &String| line.find(text).map(|byte| line[..byte].chars().count());
        lines.iter().filter_map(place).collect()
    }

    #[test]
    fn picture_fits_a_small_terminal() {
        let (lines, _) = drawn(80, 24, &sum(), &view());
        let text = lines.join("\n");
        for part in [
            "tollgate top   all policies   last 1 min   policies f3a9b2c4d5e6",
            "nodes 1/2 up   status ok   trying again: http://b:1: connection refused",
            "checks 2,046/s   units 4,321/s   allowed 1,234/s   denied 812/s   p50 21 us",
            "down 1/2",
            "q quit",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(lines[4], "SOURCE     OUTCOME        PER S      IN ALL TREND");
        assert!(lines[5].starts_with("store      allowed        1,234      74,040 "), "{text}");
        assert!(lines[6].starts_with("prefilter  denied           812      48,720 "), "{text}");
        assert_eq!(lines[8], "POLICY           KEY                                          DENIED    AT LEAST");
        assert_eq!(lines[9], "login            203.0.113.1                                 123,455       1,000");
        assert_eq!(lines[19], "SHARD                STATE    QUEUED    CLOCK ERRORS  OPS/S MEMORY    LAG   KEYS");
        assert_eq!(lines[21], "127.0.0.1:7001       up            0   -1.2ms      0  12.3k  3.0Mi      -      -");
        assert!(lines[20].starts_with("127.0.0.1:7003       down 1/2 "), "{text}");
        assert_eq!(column(&lines, "203.0.113.").len(), 9);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn picture_uses_a_large_terminal() {
        let (lines, _) = drawn(200, 50, &sum(), &view());
        assert_eq!(column(&lines, "203.0.113."), [17; 30]);
        assert_eq!(column(&lines, "127.0.0.1:700"), [0; 3]);
        // The second table of each pair.
        assert_eq!((column(&lines, "198.51.100.7"), column(&lines, "http://a:1")), (vec![118], vec![101]));
        let text = lines.join("\n");
        let rates = |name: &str, rates: [&str; 4]| {
            let [checks, denied, shadow, units] = rates;
            format!("{name:<59} {checks:>9} {denied:>9} {shadow:>9} {units:>9}")
        };
        for row in [
            rates("login", ["2.0k", "812", "3", "4.3k"]),
            rates("http://a:1", ["1.5k", "12", "0", "9.0k"]),
            "54,321         400".to_owned(),
        ] {
            assert!(text.contains(&row), "{row} in\n{text}");
        }
        assert!(lines.iter().any(|line| line.contains("http://b:1") && line.contains("away")), "{text}");
    }

    #[test]
    fn narrow_terminal_shows_either_list_of_keys() {
        let (lines, _) = drawn(80, 24, &sum(), &View { keys: Keys::Used, ..view() });
        assert!(lines[7].starts_with(" keys that used most, last 1 min "), "{lines:?}");
        assert_eq!(lines[9], "login            198.51.100.7                                 54,321         400");
        let held = |in_flight_limit| Held {
            policy: "jobs".into(),
            key: Some("anna".into()),
            in_flight: 3,
            in_flight_limit,
            ..Held::default()
        };
        let sum_of = Sum { held: vec![held(Some(4)), held(None)], ..sum() };
        let (lines, _) = drawn(80, 24, &sum_of, &View { keys: Keys::Held, ..view() });
        assert!(lines[7].starts_with(" keys with places in use "), "{lines:?}");
        let row = |places: &str| format!("{:<16} {:<39} {:>11} {places:>11}", "jobs", "anna", 3);
        assert_eq!(lines[9..11], [row("4"), row("-")]);
        let holder = Holder { id: "run-1".into(), age_ms: 1500, cost: 900, expires_in_ms: 58_500 };
        let chosen = Sum { holders: vec![holder], ..sum_of };
        let (lines, _) = drawn(80, 24, &chosen, &View { keys: Keys::Held, chosen: Some(0), ..view() });
        let title = lines.iter().position(|line| line.starts_with(" its holders ")).unwrap();
        assert_eq!(lines[title + 2], format!("{:<44} {:>11} {:>11} {:>11}", "run-1", "1.5 s", 900, "58.5 s"));
        assert!(lines[23].starts_with("jobs   anna"), "{lines:?}");
        let sum_of = Sum { holders: Vec::new(), ..chosen };
        let (lines, _) = drawn(200, 50, &sum_of, &View { keys: Keys::Held, ..view() });
        assert_eq!((column(&lines, "anna").len(), column(&lines, "198.51.100.7").len()), (2, 0));
        let (lines, _) = drawn(80, 24, &sum(), &view());
        assert!(lines[7].starts_with(" keys denied most, last 1 min, 9 of 30 "), "{lines:?}");
    }

    #[test]
    fn shards_that_do_not_fit_are_counted() {
        let mut sum = sum();
        let shard =
            |port: u64| ShardRow { address: format!("127.0.0.1:{port}"), nodes: 1, up: 1, ..ShardRow::default() };
        sum.shards.extend((8000..8020).map(shard));
        let (lines, _) = drawn(80, 24, &sum, &view());
        let title = lines.iter().position(|line| line.starts_with(" shards, 5 of 23 ")).unwrap();
        assert!(lines[title + 2].starts_with("127.0.0.1:7003       down 1/2 "), "{lines:?}");
    }

    #[test]
    fn choice_scrolls_and_shows_the_whole_key() {
        let mut chosen = View { chosen: Some(29), ..view() };
        let (lines, buffer) = drawn(80, 24, &sum(), &chosen);
        assert!(lines[17].contains("203.0.113.30"), "{lines:?}");
        assert!(buffer[(0, 17)].modifier.contains(Modifier::REVERSED));
        assert_eq!(lines[23], "login   203.0.113.30   9f00aa");
        chosen.chosen = Some(99);
        drawn(80, 24, &sum(), &chosen);
    }

    #[test]
    fn colours_are_optional() {
        let coloured = |has_colours| {
            let (_, buffer) = drawn(80, 24, &sum(), &View { has_colours, ..view() });
            buffer.content.iter().any(|cell| cell.fg != Color::Reset)
        };
        assert_eq!([false, true].map(coloured), [false, true]);
    }

    #[test]
    fn empty_sums_and_tiny_terminals_are_drawn() {
        let (lines, _) = drawn(80, 24, &Sum::default(), &view());
        assert!(lines.join("\n").contains("no key was denied"));
        for (width, height) in [(1, 1), (10, 3), (40, 8), (300, 5)] {
            drawn(width, height, &sum(), &View { shows_help: true, ..view() });
        }
    }

    #[test]
    fn texts_of_nodes_cannot_disturb_the_terminal() {
        let mut sum = sum();
        sum.top[0].key = Some("\u{1b}[2J\n".into());
        sum.shards[2].address = "a\u{9b}b".into();
        let (lines, _) = drawn(80, 24, &sum, &view());
        assert!(lines.concat().contains("\\u{1b}[2J\\n") && lines.concat().contains("a\\u{9b}b"), "{lines:?}");
    }
}
