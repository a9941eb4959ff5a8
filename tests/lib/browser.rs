//! A headless browser, controlled through a pipe with Chromium's DevTools protocol: JSON messages,
//! each followed by a NUL byte. Source: chromedevtools.github.io/devtools-protocol.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Chromium. All methods act on the page that was opened last.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    last: u64,
    /// Errors and warnings that the browser reported for the page, and the page's network requests except
    /// the one for the file itself.
    complaints: Vec<String>,
    loaded: bool,
    _home: TempDir,
}

impl Browser {
    /// Starts Chromium.
    pub fn start() -> Self {
        let home = tempfile::tempdir().expect("a folder for the browser");
        // The protocol uses descriptors 3 (input) and 4 (output).
        let mut child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--no-first-run", "--disable-extensions", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--disable-background-networking"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium: tests/setup test installs it");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let (session, complaints) = (None, Vec::new());
        Self { child, to, from, session, last: 0, complaints, loaded: false, _home: home }
    }

    /// Opens a file in a window of this size and waits until it is loaded.
    pub fn open(&mut self, file: &Path, width: u32, height: u32) {
        self.session = None;
        self.complaints.clear();
        self.loaded = false;
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attach)["sessionId"].clone();
        self.session = Some(session.as_str().expect("a session").to_owned());
        for domain in ["Runtime", "Log", "Network", "Page"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.resize(width, height);
        let url = format!("file://{}", file.display());
        self.call("Page.navigate", json!({ "url": url }));
        while !self.loaded {
            self.read();
        }
    }

    /// Changes the window's size.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.wait_for_frame();
    }

    /// Emulates the user's preference for a dark or a light colour scheme.
    pub fn prefer_dark(&mut self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": value });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
        self.wait_for_frame();
    }

    /// Waits until all pending changes have been drawn.
    pub fn wait_for_frame(&mut self) {
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
    }

    /// Returns the value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let arguments = json!({
            "expression": expression,
            "returnByValue": true,
            "awaitPromise": true,
        });
        let answer = self.call("Runtime.evaluate", arguments);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Presses the mouse button at one position and releases it at another.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mouseMoved", from, 0);
        self.mouse("mousePressed", from, 1);
        self.mouse("mouseMoved", to, 1);
        self.mouse("mouseReleased", to, 1);
        self.wait_for_frame();
    }

    /// Clicks at a position.
    pub fn click(&mut self, at: (f64, f64)) {
        self.drag(at, at);
    }

    /// Clicks on the first element that matches a selector.
    pub fn click_on(&mut self, selector: &str) {
        let find = format!(
            "(() => {{ const r = document.querySelector({selector:?}).getBoundingClientRect();
              return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        );
        let at = self.evaluate(&find);
        self.click(point(&at));
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), pressed: u32) {
        let event = json!({
            "type": kind, "x": x, "y": y, "button": if pressed > 0 { "left" } else { "none" },
            "buttons": pressed, "clickCount": pressed,
        });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key: `Enter`, `ArrowUp`, `c`.
    pub fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        for (kind, text) in [(down, text), ("keyUp", "")] {
            let event = json!({ "type": kind, "key": key, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
        self.wait_for_frame();
    }

    /// Types into the focused element.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
        self.wait_for_frame();
    }

    /// Returns a screenshot of the page as PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let screenshot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        decode_base64(screenshot["data"].as_str().expect("a screenshot"))
    }

    /// Returns the page's errors and warnings, and its requests except the one for the file itself.
    pub fn complaints(&mut self) -> Vec<String> {
        self.wait_for_frame();
        self.complaints.clone()
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("chromium reads");
        loop {
            let answer = self.read();
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Reads a message, and records what it reports about the page.
    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("chromium writes");
        assert_eq!(bytes.pop(), Some(0), "chromium has ended");
        let message: Value = serde_json::from_slice(&bytes).expect("JSON");
        let params = &message["params"];
        let is_bad = match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Log.entryAdded" => true,
            "Runtime.consoleAPICalled" => params["type"] != "log",
            "Network.requestWillBeSent" => {
                !params["request"]["url"].as_str().unwrap_or_default().starts_with("file:")
                    || params["type"] != "Document"
            }
            "Page.loadEventFired" => {
                self.loaded = true;
                false
            }
            _ => false,
        };
        if is_bad {
            self.complaints.push(message.to_string());
        }
        message
    }
}

/// Decodes base64. Source: RFC 4648, section 4.
fn decode_base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

/// Converts a position that the page returns: `{ x, y }` or `[x, y]`.
pub fn point(value: &Value) -> (f64, f64) {
    let number = |key: &str, at: usize| {
        value.get(key).or_else(|| value.get(at)).and_then(Value::as_f64).expect("a position")
    };
    (number("x", 0), number("y", 1))
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // The browser may already have ended.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let _ = self.child.wait();
    }
}
