//! The form of documents and comments: starts of sentences, widths of Markdown, links and anchors.

use std::fs;
use std::path::{Path, PathBuf};

/// No sentence begins with these words: they hide its subject.
const FORBIDDEN: [&str; 7] = ["What", "Who", "Whom", "Whoever", "Of", "Those", "That which"];

/// The width of Markdown, in columns.
const WIDTH: usize = 100;

/// `scripts/faults` writes this page, with rows of any width.
const GENERATED: &str = "docs/faults.md";

#[test]
fn no_sentence_begins_without_a_subject() {
    let mut found = Vec::new();
    for page in pages() {
        found.extend(headless(&page, &paragraphs(&prose(&read(&page)))));
    }
    for file in files("src", "rs") {
        found.extend(headless(&file, &paragraphs(&comments(&read(&file)))));
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn markdown_prose_fits_in_100_columns() {
    let mut found = Vec::new();
    for page in pages().iter().filter(|page| !page.ends_with(GENERATED)) {
        found.extend(wide(page, &prose(&read(page))));
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn relative_links_and_anchors_resolve() {
    let found: Vec<_> = pages().iter().flat_map(|page| dead_links(page, &read(page))).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn planted_faults_of_prose_are_found() {
    let file = Path::new("README.md");
    let sentences = |text: &str| headless(file, &paragraphs(&prose(text))).len();
    assert_eq!(sentences("A limit holds. What is over it\nis denied. Of course."), 2);
    assert_eq!(sentences("What is a quota?\n\nOffers of those.\n\n```\nWho\n```\n| Who | x |"), 0);
    assert_eq!(headless(file, &paragraphs(&comments("fn f() {}\n/// Those keys expire.\n"))).len(), 1);
    assert_eq!(wide(file, &prose(&format!("a {}\n| {0} |\n", "b".repeat(99)))).len(), 1);
    assert_eq!(dead_links(file, "[a](nowhere.md) [b](#nowhere) [c](docs/guarantees.md#nowhere)").len(), 3);
    assert_eq!(dead_links(file, "# A b, `c`\n[a](#a-b-c) [b](https://example.com) `[c](d)`"), [""; 0]);
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", "md");
    pages.push("README.md".into());
    pages
}

fn files(folder: impl AsRef<Path>, extension: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(path, extension),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// A page without its code blocks and tables: these lines are empty, so that numbers stay.
fn prose(text: &str) -> Vec<String> {
    let mut is_code = false;
    let line = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_prose = !is_code && !is_fence && !line.trim_start().starts_with('|');
        if is_prose { line.to_owned() } else { String::new() }
    };
    text.lines().map(line).collect()
}

/// The text of comments; the other lines are empty.
fn comments(code: &str) -> Vec<String> {
    let text = |line: &str| {
        line.trim_start()
            .strip_prefix("//")
            .map(|text| text.trim_start_matches(['/', '!']).trim().to_owned())
    };
    code.lines().map(|line| text(line).unwrap_or_default()).collect()
}

fn paragraphs(lines: &[String]) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (line, number) in lines.iter().zip(1..) {
        let text = line.trim();
        let is_item =
            text.starts_with(['-', '*']) || text.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        match paragraphs.last_mut() {
            Some((_, paragraph)) if is_open && !is_item => *paragraph += &format!(" {text}"),
            // A heading is no sentence.
            _ if text.is_empty() || text.starts_with('#') => {}
            _ => paragraphs.push((number, text.trim_start_matches(['-', '*', ' ']).to_owned())),
        }
        is_open = !text.is_empty() && !text.starts_with('#');
    }
    paragraphs
}

fn headless(file: &Path, paragraphs: &[(usize, String)]) -> Vec<String> {
    let begins = |sentence: &&str| {
        let is_question = sentence.ends_with('?');
        let forbidden = |word: &str| sentence.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',']));
        !is_question && FORBIDDEN.iter().copied().any(forbidden)
    };
    let of_one = |(number, text): &(usize, String)| {
        let sentences = text.split_inclusive(['.', '?', '!']).map(str::trim).filter(begins);
        sentences.map(|sentence| format!("{}:{number}: {sentence}", file.display())).collect::<Vec<_>>()
    };
    paragraphs.iter().flat_map(of_one).collect()
}

/// A line of one word, such as a link, cannot be wrapped.
fn wide(page: &Path, lines: &[String]) -> Vec<String> {
    let is_wide = |line: &str| line.chars().count() > WIDTH && line.trim().contains(' ');
    let wide = lines.iter().zip(1..).filter(|(line, _)| is_wide(line));
    wide.map(|(_, number)| format!("{}:{number}: wider than {WIDTH} columns", page.display())).collect()
}

fn dead_links(page: &Path, text: &str) -> Vec<String> {
    let is_dead = |link: &&str| {
        let (path, anchor) = link.split_once('#').unwrap_or((*link, ""));
        let target = if path.is_empty() { page.to_owned() } else { page.with_file_name(path) };
        let text = if path.is_empty() { Some(text.to_owned()) } else { fs::read_to_string(&target).ok() };
        let has_anchor = || text.is_some_and(|text| anchors(&text).iter().any(|found| found == anchor));
        !target.exists() || (!anchor.is_empty() && !has_anchor())
    };
    let links = links(text);
    let dead = links.iter().map(String::as_str).filter(|link| !link.contains("://")).filter(is_dead);
    dead.map(|link| format!("{}: dead link {link}", page.display())).collect()
}

fn links(text: &str) -> Vec<String> {
    let text = prose_with_tables(text);
    let outside: String = text.split('`').step_by(2).collect();
    outside.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

fn prose_with_tables(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchors that GitHub gives to headings.
fn anchors(text: &str) -> Vec<String> {
    let anchor = |line: &str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    prose(text).iter().filter(|line| line.starts_with('#')).map(|line| anchor(line)).collect()
}
