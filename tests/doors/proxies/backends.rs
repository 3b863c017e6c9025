//! Backends with a route for each rule of the pages: real programs in `tests/doors/backends`, which
//! `scripts/gateways` installs. Some decode each segment of a path, and others the whole path.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::http::Connection;

/// The programs, and the names of what listens at the ports that each prints.
const PROGRAMS: [(&[&str], [&str; 2]); 3] = [
    (&["node", "target/gateways/backend/backend.js"], ["Express", "Node's URL"]),
    (&["target/gateways/bin/backend"], ["ServeMux", "Go's path.Clean"]),
    (&["python3", "tests/doors/backends/python/backend.py"], ["WSGI", "WSGI, cleaned"]),
];

pub(super) struct Backends {
    /// Each ends with its input.
    programs: Vec<Child>,
    ports: Vec<(&'static str, u16)>,
}

impl Drop for Backends {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

impl Backends {
    pub(super) fn start() -> Self {
        let mut all = Self { programs: Vec::new(), ports: Vec::new() };
        for (words, names) in PROGRAMS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
            // A name alone is that of a program on the PATH.
            let program = if words[0].contains('/') { folder.join(words[0]) } else { words[0].into() };
            let mut process = Command::new(program)
                .args(&words[1..])
                .current_dir(folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("{words:?}: {error}: run scripts/gateways, which installs it"));
            let mut ports = String::new();
            BufReader::new(process.stdout.take().unwrap()).read_line(&mut ports).unwrap();
            all.programs.push(process);
            let ports: Vec<u16> = ports.split_whitespace().map(|port| port.parse().unwrap()).collect();
            assert_eq!(ports.len(), names.len(), "{words:?} prints no ports: run scripts/gateways");
            all.ports.extend(names.into_iter().zip(ports));
        }
        all
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ports.iter().map(|(name, _)| *name)
    }

    /// The route by which each backend serves a request with this head, if one does.
    pub(super) fn served(&self, head: &str) -> Vec<(&'static str, Option<String>)> {
        let ask = |&(name, port): &(&'static str, u16)| {
            let mut connection = Connection::open(&format!("127.0.0.1:{port}")).unwrap();
            connection.send(head.as_bytes()).unwrap();
            let answer = connection.receive(true).unwrap_or_else(|error| panic!("{name}: {head}: {error}"));
            (name, (answer.status == 200).then(|| String::from_utf8(answer.body).unwrap()))
        };
        self.ports.iter().map(ask).collect()
    }
}
