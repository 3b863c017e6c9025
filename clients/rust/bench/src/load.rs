use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;

use crate::Result;

/// Sends requests over connections that stay open, and requires 200 each time.
pub fn run(address: &str, connections: usize, requests: usize) -> Result<()> {
    thread::scope(|scope| {
        let callers: Vec<_> =
            (0..connections).map(|_| scope.spawn(move || run_one(address, requests / connections))).collect();
        callers.into_iter().try_for_each(|caller| caller.join().map_err(|_| "a caller failed")?)
    })
}

fn run_one(address: &str, requests: usize) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    for _ in 0..requests {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        read_response(&mut reader)?;
    }
    Ok(())
}

fn read_response(reader: &mut BufReader<TcpStream>) -> Result<()> {
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim_end().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    match status.starts_with("HTTP/1.1 200") {
        true => Ok(()),
        false => Err(format!("the server answers {status}").into()),
    }
}
