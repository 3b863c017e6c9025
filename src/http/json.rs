//! Writes the JSON of answers.
//!
//! Every check needs it, and a general serialiser takes a tenth of a check's time. That serialiser
//! still escapes the texts.

use serde::Serialize;

/// An object under construction. Its names need no escapes.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub(super) fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    pub(super) fn close(self) {
        self.out.push(b'}');
    }

    /// Adds a name and returns the buffer for its value. The names are constants, so inlining turns
    /// them into a few moves each.
    #[inline(always)]
    pub(super) fn member(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub(super) fn bool(&mut self, name: &str, value: bool) {
        self.member(name).extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub(super) fn number(&mut self, name: &str, value: u64) {
        self.member(name).extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes `None` as `null`.
    pub(super) fn optional(&mut self, name: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.member(name).extend_from_slice(b"null"),
        }
    }

    /// Writes a text that needs no escapes.
    pub(super) fn word(&mut self, name: &str, value: &str) {
        let out = self.member(name);
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
    }

    /// Writes any other value.
    pub(super) fn value(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        write(self.member(name), value);
    }

    pub(super) fn list<T>(
        &mut self,
        name: &str,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(T, &mut Vec<u8>),
    ) {
        let mut list = List::open(self.member(name));
        items.for_each(|item| write(item, list.item()));
        list.close();
    }
}

/// An array under construction.
pub(super) struct List<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> List<'a> {
    pub(super) fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, is_empty: true }
    }

    pub(super) fn close(self) {
        self.out.push(b']');
    }

    /// Returns the buffer for the next item.
    pub(super) fn item(&mut self) -> &mut Vec<u8> {
        if !std::mem::replace(&mut self.is_empty, false) {
            self.out.push(b',');
        }
        self.out
    }
}

/// Writes any value with the general serialiser.
pub(super) fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to a `Vec` cannot fail, and no value here has map keys that serde_json rejects.
    let _ = serde_json::to_writer(out, value);
}
