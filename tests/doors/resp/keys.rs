//! Keys of `CL.THROTTLE` as programs of redis-cell treat them: forgotten, and asked about.

use redis::Value;

use super::{POLICY, command, door, encoded, numbers};
use crate::support::unique;

#[test]
fn deleted_keys_have_no_debt() {
    let door = door(POLICY);
    let mut connection = door.connect();
    let (one, two, unused) = (unique("one"), unique("two"), unique("unused"));
    for key in [&one, &two] {
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 4 5 3600 5"))[..3], [0, 5, 0]);
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 4 5 3600"))[0], 1);
    }
    let mut ask = |words: String| command(&mut connection, &words).unwrap();
    assert_eq!(ask(format!("EXISTS {one} {two} {unused} {one}")), Value::Int(3));
    assert_eq!(ask(format!("DEL {one} {unused} {one}")), Value::Int(1));
    assert_eq!(ask(format!("EXISTS {one}")), Value::Int(0));
    assert_eq!(ask(format!("UNLINK {one} {two}")), Value::Int(1));
    for key in [&one, &two] {
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} 4 5 3600"))[..3], [0, 5, 4]);
    }
}

#[test]
fn time_to_live_is_that_of_the_debt_by_its_own_rate() {
    let door = door(POLICY);
    let mut connection = door.connect();
    let ask = |connection: &mut _, words: String| command(connection, &words).unwrap();
    for (numbers_of, least, most) in [
        ("15 30 60", 1, 2),
        ("15 30 60 10", 18, 20),
        ("9 1 86400 2", 172_790, 172_800),
        ("0 1 31622400", 31_622_390, 31_622_400),
    ] {
        let key = unique("ttl");
        assert_eq!(ask(&mut connection, format!("TTL {key}")), Value::Int(-2));
        assert_eq!(numbers(&mut connection, &format!("CL.THROTTLE {key} {numbers_of}"))[0], 0);
        let Value::Int(seconds) = ask(&mut connection, format!("TTL {key}")) else { panic!() };
        assert!((least..=most).contains(&seconds), "{numbers_of}: {seconds}");
    }
}

#[test]
fn pipelines_run_operations_on_keys_in_order() {
    let door = door(POLICY);
    let key = unique("k");
    let throttle = encoded(&["CL.THROTTLE", &key, "0", "1", "3600"]);
    let exists = encoded(&["EXISTS", &key]);
    let pipeline = [&exists, &throttle, &exists, &throttle, &encoded(&["DEL", &key]), &exists, &throttle];
    let (allowed, denied) = ("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n", "*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n");
    let expected = [":0\r\n", allowed, ":1\r\n", denied, ":1\r\n", ":0\r\n", allowed].concat();
    assert_eq!(door.exchange(pipeline.map(String::as_str).concat()), expected);
}

#[test]
fn operations_on_keys_need_valid_keys() {
    let door = door(POLICY);
    for (words, error) in [
        (&["DEL"][..], "ERR wrong number of arguments for 'del' command"),
        (&["TTL", "a", "b"], "ERR wrong number of arguments for 'ttl' command"),
        (&["EXISTS", "a", ""], "ERR the key must have 1 to 1024 bytes, not 0"),
        (&["UNLINK", ""], "ERR the key must have 1 to 1024 bytes, not 0"),
    ] {
        assert_eq!(door.exchange(encoded(words)), format!("-{error}\r\n"));
    }
}
