// The dialog for a token. The token is kept in this page's memory, and nowhere else.

import { access, hasToken, useToken } from "./feed.js";

const $ = (id) => document.getElementById(id);

export class Keybox {
  /** `onChanged()` is called after the token has changed. */
  constructor(onChanged) {
    this.may = { guarded: false, tokens: false, known: false, view: true, drain: false };
    this.onChanged = onChanged;
    $("key").addEventListener("click", () => this.open());
    $("cancel").addEventListener("click", () => $("keybox").close());
    $("forget").addEventListener("click", () => this.#use(""));
    $("keybox").querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use($("token").value.trim());
    });
  }

  open() {
    $("token").value = "";
    $("keyerror").textContent = "";
    $("keytext").textContent = this.may.tokens
      ? `${this.may.guarded && !this.may.view ? "Viewing this mesh needs a viewer's token." : "An administrator's token lets you drain teachers."} It stays in this page's memory.`
      : "This manager knows no tokens, so the page is read-only. Start it with --tokens FILE to drain teachers from here.";
    for (const id of ["token", "use"]) $(id).hidden = !this.may.tokens;
    $("forget").hidden = !hasToken();
    if (!$("keybox").open) $("keybox").showModal();
  }

  /** Ask the manager what the token permits; if it does not answer, nothing changes. */
  async refresh() {
    try {
      this.may = await access();
    } catch {
      return;
    }
    const role = this.may.drain ? "admin" : this.may.known ? "viewer" : "";
    $("key").dataset.role = role;
    $("key").textContent = { admin: "Administrator", viewer: "Viewer" }[role] ?? "Read-only";
  }

  async #use(token) {
    useToken(token);
    await this.refresh();
    if (token && !this.may.known) {
      useToken("");
      $("keyerror").textContent = "This token is not known here.";
      return;
    }
    $("keybox").close();
    this.onChanged();
  }
}
