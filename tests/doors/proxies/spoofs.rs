//! Requests that claim to be others: an address, a method, a host, a path or a user that is not
//! theirs. Each of them is beyond its limit.

/// A request that a backend might read as a login.
pub(crate) struct Spelling {
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    /// Whether only the backend's own reading makes it one.
    pub(crate) is_own_reading: bool,
}

/// Spellings that count as `/login`, or are denied.
const SPELLINGS: [&str; 132] = [
    "/login",
    "/login/",
    "//login",
    "///login",
    "/./login",
    "/././login",
    "/x/../login",
    "/x/y/../../login",
    "/x//../login",
    "/x/..//login",
    "/.//login",
    "/../login",
    "/../../login",
    "/login/.",
    "/login/./",
    "/login/x/..",
    "/login/x/../",
    "/login//",
    "/login///",
    "/health/../login",
    "/account/../login",
    "/%6cogin",
    "/%6Cogin/",
    "/l%6fgin",
    "/lo%67in",
    "/log%69n",
    "/logi%6e",
    "/%6c%6f%67%69%6e",
    "/%6C%6F%67%69%6E",
    "/x/%2e%2e/login",
    "/x/%2E%2E/login",
    "/x/.%2e/login",
    "/x/%2e./login",
    "/%2e/login",
    "/%2e%2e/login",
    "/login/%2e",
    "/login/x/%2e%2e",
    "/health/%2e%2e/login",
    "/login%2f",
    "/login%2F",
    "/%2flogin",
    "/%2Flogin",
    "/%2f%2flogin",
    "/x%2f..%2flogin",
    "/x%2F%2e%2e%2Flogin",
    "/x/..%2flogin",
    "/x/%2e%2e%2flogin",
    "/health%2f..%2flogin",
    "/;/../login",
    "/x;y/../login",
    "/login?",
    "/login??",
    "/login?x=1",
    "/login?a=b&c=d",
    "/login?/health",
    "/login?x=/../health",
    "/login?next=http://x/",
    "http://app.example.com/login",
    "http://app.example.com//login",
    "http://app.example.com/x/../login",
    "http://app.example.com/%6cogin",
    "http://other.example.com/login",
    "HTTP://app.example.com/login",
    "/login#",
    "/login#x",
    "/login#/../health",
    "/login?x#y",
    "/login%00",
    "/login%00.png",
    "/%00login",
    "/login%09",
    "/login%0a",
    "/login%0d",
    "/login%0d%0a",
    "/login%0b",
    "/login%1f",
    "/login%7f",
    "/login%c2%85",
    "/login%c2%a0%00",
    "/login\\",
    "/x\\..\\login",
    "/x\\../login",
    "\\login",
    "/login%5c",
    "/%5clogin",
    "/x%5c..%5clogin",
    "/x%5C..%5Clogin",
    "/x/..%5clogin",
    "/x/..;/login",
    "/x/..;x=1/login",
    "/x/%2e%2e;/login",
    "/x/..%3b/login",
    "/x/..;/..;/login",
    "/.;/login",
    "/%c0%af..%c0%aflogin",
    "/x/%c0%ae%c0%ae/login",
    "/x%c0%af..%c0%aflogin",
    "/login%c0%80",
    "/%e0%80%aflogin",
    "/login%ff",
    "/login%fe%ff",
    "/login%ed%a0%80",
    "/caf%e9/../login",
    "/%u006cogin",
    "/l%u006fgin",
    "/login%u002f",
    "/login%",
    "/login%2",
    "/login%zz",
    "/login%2g",
    "/%256cogin",
    "/%256Cogin",
    "/%25%36%63ogin",
    "/x/%252e%252e/login",
    "/x/..%252flogin",
    "/x%252f..%252flogin",
    "/login%252f",
    "/login%2500",
    "/x%255c..%255clogin",
    "/login%253bx",
    "login",
    "/Login",
    "/LOGIN",
    "/logI%6e",
    "/login;x=1",
    "/login;",
    "/login;jsessionid=1/",
    "/;x/login",
    "/login%3bx=1",
    "/log%C4%B1n",
    "/account/..%2flogin",
    "/account/%2e%2E%2Flogin",
];

/// The readings of some backends: without a suffix or last letters, or with a third decoding.
const OWN_READINGS: [&str; 7] =
    ["/login.json", "/login.", "/login..", "/login%20", "/%EF%BD%8Cogin", "/login%E2%80%8B", "/%25256cogin"];

pub(crate) fn spellings() -> Vec<Spelling> {
    let of = |method, is_own_reading| move |target: &&'static str| Spelling { method, target, is_own_reading };
    let same = SPELLINGS.iter().map(of("POST", false));
    let methods = ["post", "Post", "POST,GET", "PO\tST", "P\u{d6}ST"].map(|method| of(method, false)(&"/login"));
    let own = OWN_READINGS.iter().map(of("POST", true));
    same.chain(methods).chain(own).collect()
}

/// One request, and the header that it adds.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    pub(crate) host: &'static str,
    spoofed: Vec<(&'static str, &'static str)>,
}

impl Row {
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        self.spoofed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }
}

/// The fields by which programs name a client.
const ADDRESS_FIELDS: [&str; 18] = [
    "X-Forwarded-For",
    "x-forwarded-for",
    "X_Forwarded_For",
    "X-Forwarded",
    "Forwarded-For",
    "X-Real-IP",
    "x-real-ip",
    "X_Real_IP",
    "X-Client-IP",
    "Client-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Fastly-Client-IP",
    "X-Cluster-Client-IP",
    "X-Originating-IP",
    "X-Remote-Addr",
    "X-Envoy-External-Address",
    "X-ProxyUser-Ip",
];

const ADDRESSES: [&str; 16] = [
    "203.0.113.50",
    "203.0.113.51, 127.0.0.1",
    "127.0.0.1",
    "203.0.113.52:80",
    "[2001:db8::1]:80",
    "2001:db8::2",
    "::ffff:203.0.113.53",
    "unknown",
    "for=203.0.113.54",
    "fe80::1%eth0",
    "[fe80::1%25eth0]:443",
    "203.0.113.55:65536",
    "203.0.113.56\t",
    "203.0.113.57,,",
    ",",
    "64:ff9b::203.0.113.58",
];

const METHOD_FIELDS: [&str; 6] = [
    "X-Forwarded-Method",
    "x-forwarded-method",
    "X-Original-Method",
    "X-HTTP-Method-Override",
    "X-HTTP-Method",
    "X_Forwarded_Method",
];

const HOST_FIELDS: [&str; 6] =
    ["X-Forwarded-Host", "x-forwarded-host", "X-Original-Host", "X-Host", "X-Forwarded-Server", "X_Forwarded_Host"];

const PATH_FIELDS: [&str; 9] = [
    "X-Forwarded-Uri",
    "x-forwarded-uri",
    "X-Original-URI",
    "X-Original-URL",
    "X-Rewrite-URL",
    "X-Forwarded-Path",
    "X-Envoy-Original-Path",
    "X-Forwarded-Prefix",
    "X_Forwarded_Uri",
];

const USER_FIELDS: [&str; 8] =
    ["X-User", "x-user", "X-USER", "X_User", "Remote-User", "X-Forwarded-User", "X-Auth-Request-User", "X-User-Id"];

/// Other spellings of `/login`.
const LOGINS: [&str; 15] = [
    "/login",
    "/login/",
    "//login",
    "/./login",
    "/x/../login",
    "/%6cogin",
    "/%6Cogin/",
    "/x/%2e%2e/login",
    "/login?x=1",
    "/login?/health",
    "/login/.",
    "/../login",
    "/login%2f",
    "/%2flogin",
    "/x%2f..%2flogin",
];

pub(crate) fn rows() -> Vec<Row> {
    let row = |method, target: &str, host, spoofed: &[(&'static str, &'static str)]| Row {
        method,
        target: target.to_owned(),
        host,
        spoofed: spoofed.to_vec(),
    };
    let (app, status) = ("app.example.com", "status.example.com");
    let mut rows = Vec::new();
    rows.extend(ADDRESS_FIELDS.map(|field| row("GET", "/", app, &[(field, "203.0.113.9")])));
    rows.extend(ADDRESSES.map(|address| row("GET", "/", app, &[("X-Forwarded-For", address)])));
    rows.extend(ADDRESSES.map(|address| row("GET", "/", app, &[("X-Real-IP", address)])));
    rows.push(row("GET", "/", app, &[("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-For", "203.0.113.10")]));
    rows.push(row("GET", "/", app, &[("X-Real-IP", "203.0.113.9"), ("X-Real-IP", "203.0.113.10")]));
    rows.push(row("GET", "/", app, &[("Forwarded", "for=203.0.113.9;host=status.example.com;proto=http")]));
    rows.push(row(
        "GET",
        "/",
        app,
        &[("Connection", "X-Forwarded-For, X-Real-IP, X-Forwarded-Uri, X-Original-URI")],
    ));
    // A POST to the login that claims to be a GET, and a GET of the path that nothing limits.
    rows.extend(METHOD_FIELDS.map(|field| row("POST", "/login", app, &[(field, "GET")])));
    rows.extend(METHOD_FIELDS.map(|field| row("POST", "/health", status, &[(field, "GET")])));
    rows.extend(HOST_FIELDS.map(|field| row("GET", "/health", app, &[(field, "status.example.com")])));
    rows.extend(PATH_FIELDS.map(|field| row("GET", "/", status, &[(field, "/health")])));
    rows.extend(PATH_FIELDS.map(|field| row("POST", "/login", app, &[(field, "/other")])));
    rows.extend(USER_FIELDS.map(|field| row("GET", "/account/7", app, &[(field, "8")])));
    rows.push(row("GET", "/account/7", app, &[("X-User", "8"), ("X-User", "9")]));
    rows.push(row("GET", "/account/../account/7", app, &[]));
    rows.push(row("GET", "/account/7?user=8", app, &[("Authorization", "Bearer 8"), ("Cookie", "user=8")]));
    rows.push(row("GET", "/", app, &[("X-Tollgate-Token", "tollgate_0"), ("Origin", "http://evil.example")]));
    rows.extend(LOGINS.map(|target| row("POST", target, app, &[])));
    rows.extend(
        ["/health/..", "/health/../", "/health%2f..", "/account/..%2fx", "/x?/health", "/Health", "/health/x"]
            .map(|target| row("GET", target, status, &[])),
    );
    // Backends read these in several ways.
    rows.extend(
        ["/health#/../x", "/health#x", "/health/..;/x", "/health\\..\\x"].map(|target| row("GET", target, status, &[])),
    );
    // One proxy passes all, another one only the last.
    rows.extend(
        ["app.example.com,status.example.com", "status.example.com, app.example.com"]
            .map(|host| row("GET", "/health", host, &[])),
    );
    rows
}
