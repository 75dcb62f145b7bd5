"""The server's page in headless Chromium: a talk, stop, regenerate, settings, a phone's width.

Usage: page.py URL KEY [SCREENSHOT]

Speaks WebDriver's HTTP itself; what it needs is `chromedriver` and a Chromium.
"""

import base64
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

URL, KEY = sys.argv[1:3]
SHOT = sys.argv[3] if len(sys.argv) > 3 else None


class Browser:
    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                urllib.request.urlopen(self.base + "/status").read()
                break
            except OSError:
                time.sleep(0.1)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,760"]
        capabilities = {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}
        self.session = self.call("POST", "/session", {"capabilities": capabilities})["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None

    def do(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def script(self, text, *arguments):
        return self.do("POST", "/execute/sync", {"script": text, "args": list(arguments)})

    def element(self, selector):
        found = self.do("POST", "/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def type(self, selector, text):
        self.do("POST", f"/element/{self.element(selector)}/value", {"text": text})

    def click(self, selector):
        self.do("POST", f"/element/{self.element(selector)}/click", {})

    def keys(self, *keys):
        actions = [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def until(self, what, text, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.script(f"return {text}")
            if value:
                return value
            time.sleep(0.05)
        talk = self.script("return document.body.innerText")
        raise AssertionError(f"{what}: `{text}` did not become true; the page says {talk!r}")

    def close(self):
        try:
            self.do("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=10)


def main():
    browser = Browser()
    try:
        browser.do("POST", "/url", {"url": URL})
        browser.until("the key is asked for", "document.getElementById('model').textContent.includes('API key')")
        browser.click("summary")
        browser.type("#key", KEY)
        browser.type("#system", "Answer in one short sentence.")
        browser.script("for (const [id, v] of [['temperature', 0], ['max_tokens', 24], ['seed', 1]]) document.getElementById(id).value = v")
        browser.script("document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.until("the model is known", "document.getElementById('model').textContent === 'smollm2'")
        browser.click("summary")

        enter = "\ue007"
        browser.type("#prompt", "What is the capital of France?" + enter)
        browser.until("an answer comes", "document.querySelectorAll('article.assistant').length === 1 && running !== null")
        browser.until("it is complete", "running === null && talk.length === 2")
        answer = browser.script("return talk[1].content")
        shown = browser.script("return document.querySelector('article.assistant').firstChild.data")
        assert answer and shown == answer, (shown, answer)
        status = browser.script("return document.getElementById('status').textContent")
        assert "tokens/s" in status and "context" in status and "of 2048" in status, status

        browser.keys("\ue00a", "r")
        browser.until("it is given again", "running === null && talk.length === 2 && document.querySelectorAll('article.assistant').length === 1 && document.getElementById('status').textContent.includes('context')")
        assert browser.script("return talk[1].content") == answer, "temperature 0 answers the same"
        if SHOT:
            picture = base64.b64decode(browser.do("GET", "/screenshot"))
            with open(SHOT, "wb") as file:
                file.write(picture)
            print(f"page: {SHOT}, {len(picture)} bytes")

        browser.script("document.getElementById('max_tokens').value = 1500; document.getElementById('temperature').value = 1.5")
        browser.type("#prompt", "Tell me a very long story about a fox." + enter)
        browser.until("the story begins", "running !== null && document.querySelectorAll('article.assistant')[1]?.firstChild.data.length > 20")
        browser.keys("\ue00c")
        browser.until("Escape stops it", "running === null && document.body.innerText.includes('stopped')", 10)

        browser.script("document.getElementById('temperature').value = -1")
        browser.type("#prompt", "Hello" + enter)
        browser.until("an error is shown", "document.querySelector('article.error')?.textContent.includes('temperature')")

        browser.keys("\ue00a", "n")
        browser.until("a new talk is empty", "talk.length === 0 && document.querySelectorAll('article').length === 0")
        browser.do("POST", "/window/rect", {"width": 500, "height": 800})
        wide = browser.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"a phone would scroll sideways by {wide} px"
        loaded = browser.script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert all(name.startswith(URL) for name in loaded), loaded
        log = [entry for entry in browser.do("POST", "/se/log", {"type": "browser"}) if entry["level"] in ("WARNING", "SEVERE") and "status of 40" not in entry["message"]]
        assert not log, log
        print("page: talk, regenerate, stop, error, new talk and a phone's width ok")
    finally:
        browser.close()


main()
