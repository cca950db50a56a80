(() => {
  // browsers open what a link leads into by themselves; older ones, and cells that the filter hides, need this
  const reveal = (hash) => {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    const details = target && target.closest("details");
    if (!details) return;
    details.hidden = details.parentElement.hidden = false;
    details.open = true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) reveal(link.hash);
  });
  if (location.hash) reveal(location.hash);

  const form = document.getElementById("filter");
  const rows = [...document.querySelectorAll(".matrix tbody tr")];
  const sections = [...document.querySelectorAll(".scenario")];
  const chosen = {
    "": () => true,
    bad: (one) => "bad" in one.dataset,
    unexpected: (one) => "unexpected" in one.dataset || one.classList.contains("unexpected"),
  };
  const apply = () => {
    const matches = chosen[form.elements.only.value];
    const words = form.elements.text.value.trim().toLowerCase();
    let shown = 0;
    rows.forEach((row, place) => {
      const cells = [...row.querySelectorAll("td")];
      row.hidden = !row.dataset.text.includes(words) || !cells.some(matches);
      sections[place].hidden = row.hidden;
      shown += !row.hidden;
      cells.forEach((cell) => cell.classList.toggle("dim", !matches(cell)));
      sections[place].querySelectorAll("details").forEach((one) => { one.hidden = !matches(one); });
    });
    form.querySelector("output").value = shown === rows.length ? "" : `${shown} of ${rows.length} scenarios`;
  };
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
