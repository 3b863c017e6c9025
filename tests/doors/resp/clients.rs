//! Real clients, without any option. `scripts/redis-clients` installs them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Door, POLICY, door};
use crate::support::chaos::now_ms;
use crate::support::redis_cell::ROWS;
use crate::support::unique;

/// A program that reads commands as lines of JSON, and prints the answers so.
struct Client {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    fn start(mut program: Command, door: &Door) -> Self {
        let name = format!("{program:?}");
        let mut process = program
            .arg(&door.address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}: run scripts/redis-clients, which installs the clients"));
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { commands: process.stdin.take().unwrap(), process, answers }
    }

    fn send(&mut self, words: &[String]) -> Value {
        writeln!(self.commands, "{}", json!(words)).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{words:?} -> {answer:?}: {error}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn installed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/redis-clients").join(path)
}

fn program(name: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(name);
    program.args(arguments);
    program
}

fn throttle(key: &str, numbers: &[u64]) -> Vec<String> {
    let words = ["CL.THROTTLE".to_owned(), key.to_owned()].into_iter();
    words.chain(numbers.iter().map(u64::to_string)).collect()
}

/// Sends each row. The clock of the node runs, so a row may need another attempt on a slow machine.
/// Rows that end within a ms of an edge wait less, which gives the same numbers.
fn gets_the_numbers_of_redis_cell(send: impl Fn(&[String]) -> Value) {
    let begin = |([max_burst, count, period, used, later, _], _): ([u64; 6], [i64; 5])| {
        let key = unique("row7");
        if used > 0 {
            let charged = send(&throttle(&key, &[max_burst, count, period, used]));
            assert_eq!(charged[0], 0, "{charged}");
        }
        // The clock drops fractions of a ms, so the others wait one more.
        let later = if matches!(later, 59 | 428 | 1999) { later * 3 / 4 } else { later + 1 };
        (key, now_ms() + later)
    };
    let end = |([max_burst, count, period, .., quantity], _): ([u64; 6], [i64; 5]), (key, due): &(String, u64)| {
        std::thread::sleep(Duration::from_millis(due.saturating_sub(now_ms())));
        send(&throttle(key, &[max_burst, count, period, quantity]))
    };
    // On the first attempt all rows wait at once.
    let mut begun: Vec<_> = ROWS.into_iter().map(|row| (row, begin(row))).collect();
    begun.sort_by_key(|(_, (_, due))| *due);
    for (row, begun) in begun {
        let mut last = end(row, &begun);
        let is_right = (0..20).any(|attempt| {
            if attempt > 0 {
                last = end(row, &begin(row));
            }
            last == json!(row.1)
        });
        assert!(is_right, "{row:?}: {last}");
    }
}

/// The answers and the errors of a client.
fn serves(program: Command) {
    let door = door(POLICY);
    let client = std::cell::RefCell::new(Client::start(program, &door));
    let send = |words: &[String]| client.borrow_mut().send(words);
    gets_the_numbers_of_redis_cell(send);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let checked = send(&words("TG.CHECK p alice 2"));
    assert_eq!((&checked[0], &checked[1], &checked[2], &checked[3]), (&json!(0), &json!(5), &json!(3), &json!(-1)));
    assert_eq!(checked[5], "store");
    let failed = send(&words("CL.THROTTLE k 15 x 60"));
    assert!(failed["error"].as_str().unwrap().contains("Couldn't parse as integer: x"), "{failed}");
    assert_eq!(send(&words("TG.CHECK p alice 0"))[2], json!(3), "the connection goes on");
}

fn python(name: &str) -> Command {
    program(&installed("python/bin/python"), &["tests/doors/clients/python/client.py", name])
}

fn node(name: &str) -> Command {
    program(Path::new("node"), &[installed("node/client.js").to_str().unwrap(), name])
}

fn go(name: &str) -> Command {
    program(&installed("go/client"), &[name])
}

#[test]
fn redis_py_gets_the_numbers_of_redis_cell() {
    serves(python("redis-py"));
}

#[test]
fn ioredis_gets_the_numbers_of_redis_cell() {
    serves(node("ioredis"));
}

#[test]
fn node_redis_gets_the_numbers_of_redis_cell() {
    serves(node("node-redis"));
}

#[test]
fn go_redis_gets_the_numbers_of_redis_cell() {
    serves(go("go-redis"));
}

#[test]
fn rueidis_gets_the_numbers_of_redis_cell() {
    serves(go("rueidis"));
}

#[test]
fn clients_of_clusters_get_the_numbers_of_redis_cell() {
    for client in
        [python("redis-py-cluster"), node("ioredis-cluster"), node("node-redis-cluster"), go("go-redis-cluster")]
    {
        serves(client);
    }
}

/// The pipeline of redis-py is a transaction by default.
#[test]
fn default_pipeline_of_redis_py_is_charged_once() {
    let door = door(POLICY);
    let mut client = Client::start(python("redis-py"), &door);
    let key = unique("pipeline");
    let throttle = format!("CL.THROTTLE {key} 1 1 3600");
    let answers = client.send(&["PIPELINE".to_owned(), throttle.clone(), format!("DEL {key}"), throttle]);
    let allowed = json!([0, 2, 1, -1, 3600]);
    assert_eq!(answers, json!([allowed, 1, allowed]));
}

#[test]
#[ignore = "needs a mirror of Maven: scripts/redis-clients MIRROR"]
fn jedis_gets_the_numbers_of_redis_cell() {
    let classes = format!("{}/*:{}", installed("java").display(), installed("java").display());
    serves(program(Path::new("java"), &["-cp", &classes, "Client"]));
}

#[test]
fn redis_cli_gets_the_numbers_of_redis_cell() {
    let door = door(POLICY);
    let port = door.address.rsplit_once(':').unwrap().1;
    let mut process = Command::new("redis-cli")
        .args(["-p", port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-tools is installed");
    let (commands, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
    let client = std::cell::RefCell::new(Client { process, commands, answers });
    gets_the_numbers_of_redis_cell(|words| {
        let mut client = client.borrow_mut();
        writeln!(client.commands, "{}", words.join(" ")).unwrap();
        let lines = (&mut client.answers).lines().take(5);
        lines.map(|line| line.unwrap().parse::<i64>().unwrap()).collect::<Vec<_>>().into()
    });
}
