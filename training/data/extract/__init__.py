"""From a record of an archive to a text: response, terms of use, and the page's text in a process of its own."""
