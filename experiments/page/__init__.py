"""The report: results as one self-contained HTML page.

`page.html`, `style.css` and `script.js` are the page; `writing` fills in the data, `ranges` are the
histograms and precision profiles that it shows.
"""
