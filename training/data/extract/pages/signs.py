"""Words by which pages name their parts, and phrases with which blocks outside the main text begin.

These are patterns for the automaton of `markup`. `|` is the edge of a word, so `|ad|` is not
found in `header`. They were collected by hand on the development part of the labelled pages (docs/extraction.md) and on
documentation sites.
"""

from __future__ import annotations

# Bits of signs. The first group drops an element's text, the second describes an element, the third marks tags to read.
(
    NAVIGATION, COMMENTS, RELATED, SHARING, PROMOTION, FORM, NOTICE, BYLINE, TAGGED, HIDDEN, FOOTER, SIDEBAR, CAPTION,
    HEADER, INVISIBLE,
) = range(15)  # fmt: skip
# CODE is no `pre` or `code`; INFOBOX counts in tables alone; TOGGLE is a switch that shows text when it is clicked;
# SHOWN is a name that only looks as if the element were hidden, or navigation; NOTE is an `aside` inside the text;
# ADMONITION is a note of documentation, whatever else it is called.
CODE, SECTION, INFOBOX, TOGGLE, SHOWN, BODY, MAIN, LINKED, NOTE, ADMONITION = range(16, 26)
DATED, ROBOTS, LICENCE, RESERVED = 30, 31, 32, 33

WORDS = {
    NAVIGATION: "|nav| |navi| navbar navigation |menu| menu|"
    " |menus breadcrumb |crumb pagination |pager| |paging| sitemap"
    " |toc| tableofcontents |skip| skiplink toolbar |tabs| topbar subnav mainnav |dropdown jumpto |prev| |next|"
    " headerlink |permalink| editsection toplang bottomlang prevnext postnav navlinks navheader navfooter",
    COMMENTS: "|comment| |comments| commentlist comment|list |disqus"
    " respond| |replies| reply| commentform |commentaires|"
    " |kommentare| livefyre |fb|comments discussion| leserkommentare userreviews reviews|list",
    RELATED: "|related related| |similar| recommend |more|stories readmore |read|more| |read|next alsoread |also|read"
    " |also|like |more|from |more|on| |popular| trending |most| mostread |latest| |recent| |teaser outbrain"
    " taboola zergnet |further|reading |see|also| |seealso yarpp crosslink |upnext| nextup |you|may suggested"
    " |suggest| |more| morelike |onward| |empfehlung |verwandte |aehnliche inlinerelated readalso |promoted|"
    " teaserlist",
    SHARING: "|share| share| |sharing| |social| |socials addthis"
    " sharedaddy sharethis sociable facebook twitter pinterest"
    " whatsapp |follow| followus |like|button |tweet| |instagram |bookmark| |sns| addtoany |jp|post|flair",
    PROMOTION: "|ad| |ads| |adv| advert advertisement sponsor"
    " |promo| promotion |promos |banner| |banners |adsense |dfp|"
    " |gpt| |outbrain |affiliate |partner| |partners| |werbung |anzeige| |publicite |shop| |product|list |buy|"
    " |cta| |donate |donation |paywall |subscri subscri |abo| |offer| |offers| |marketing|",
    FORM: "newsletter |signup |sign|up |login |signin |sign|in| |register |registration |contactform |search|"
    " searchform |mailchimp |optin |poll| |quiz| |survey| |feedback| |rating| |ratings| |vote| |votes| |mc|embed"
    " |captcha",
    NOTICE: "cookie |consent| |gdpr |copyright |disclaimer |legal| |popup| popup |modal| |overlay| |lightbox |alert|"
    " |toast| |warning|bar |notification| |notice|bar |tooltip |privacy| |impressum| |imprint",
    BYLINE: "|byline| byline |author| |authors| authorbox |author|bio |bio| |biography| aboutauthor |dateline|"
    " |timestamp| |postmeta |post|meta |entry|meta |article|meta |meta| |metadata| |pubdate |published| |post|date"
    " |entry|date |article|date |datetime| |postinfo |post|info |entry|info |reading|time |readtime |credits|"
    " |credit| |source| |posted| |vcard| |postdetails |item|info |article|info |articleinfo |post|info| |updated|"
    " |created|",
    TAGGED: "|tags| |tag|list |taglist |tag|links |taglinks |categories| |category|list |keywords| |topics| |cat|links"
    " |post|categories |entry|categories |labels| |hashtags| |entry|utility |post|tags |entry|tags",
    HIDDEN: "|visuallyhidden |visually|hidden |sr|only |screen|reader"
    " |screenreader |hidden| |hide| |noprint| |no|print|"
    " |print|only |printonly| |offscreen |assistive |invisible| |collapse| aria|hidden|true|",
    FOOTER: "|footer| footer| |footers |bottom| |colophon| |pagefooter |postfooter |entry|footer |foot|",
    SIDEBAR: "sidebar |side|bar |aside| |rail| |widget|area |widgetarea |widgets| |sidebar|widget |rightcol |leftcol"
    " |right|col |left|col |secondary| |complementary| |marginal| |marginalie |pullquote |pull|quote |tertiary|"
    " |sidecol |side|",
    CAPTION: "|caption| caption |figcaption| |photo|credit |photocredit |image|credit |imagecredit |gallery| |slideshow"
    " |carousel |slider| |photo| |video| |player| |media| |copyrightimage |wp|caption |image| |lightbox|",
    HEADER: "|header| |masthead| |siteheader |site|header |page|header |pageheader |topheader |logo| |site|title"
    " |site|branding |branding| role|banner|",
    INVISIBLE: "style|display|none| |display|none| style|visibility|hidden| |visibility|hidden|",
    SECTION: "|section| |sect1 |sect2 |sect3 |sect4 |chapter| |refsect |simplesect |subsection|",
    INFOBOX: "|infobox|",
    CODE: "|geshi| |source|code| |sourcecode| |codehilite| |highlight|source |syntaxhighlighter",
    TOGGLE: "|accordion| |accordion|header |accordion|title |accordion|button |toggle| |toggler| |question|"
    " |faq|question |collapsible| |expander| role|button|",
    SHOWN: "label|hidden| overflow|hidden| |hidden|xs |hidden|sm |hidden|md |hidden|lg print|hidden| hidden|print|"
    " xs|hidden sm|hidden md|hidden lg|hidden xl|hidden not|hidden un|hide role|tabpanel| |guimenu |guisubmenu",
    NOTE: "|footnote |note| |warning| |caution| |hint| |callout|",
    ADMONITION: "|admonition |markdown|alert|",
    BODY: "articlebody |article|body |entry|content |entrycontent |post|content |postcontent |post|body |postbody"
    " |story|body |storybody |article|content |articlecontent |article|text |articletext |story|content"
    " |storycontent |body|text |bodytext |body|copy |bodycopy |story|text |storytext |post|entry |postentry"
    " |article|main |blog|content |td|post|content |single|content |news|text |newstext |content|body |contentbody"
    " |page|content |field|body |field|name|body |article|copy |articlecopy |mw|content |mw|parser|output"
    " |text|body |post|text |entry|body |entrytext |entry|text |rich|text |richtext |blog|post|body"
    " |recipe|content |wysiwyg |instapaper |h|entry| |e|content| |markdown|body |article|html |single|post|content"
    " |message|body |articleinner |article|inner |itemprop|text|",
    MAIN: "role|main| |main| |maincontent |main|content |contentmain |content|main |role|article |hentry| |primary|",
    DATED: "property|article|published|time| itemprop|datepublished| name|date| name|dc|date| name|dc|date|issued|"
    " name|dcterms|date| name|dcterms|created| name|pubdate| name|publish|date| property|og|published|time|"
    " property|article|modified|time| itemprop|datemodified| http|equiv|last|modified| http|equiv|date|"
    " name|datepublished| name|article|published|time|",
    ROBOTS: "name|robots| bot| |google|extended| |anthropic|ai| |cohere|ai| |img|dataset| |bytespider|",
    LICENCE: "|license| name|dc|rights| name|dcterms|license| name|dcterms|rights|",
    RESERVED: "name|tdm|reservation| name|tdm|policy|",
}  # fmt: skip

WANTED = 1 << DATED | 1 << ROBOTS | 1 << LICENCE | 1 << RESERVED
ATTRIBUTES = {
    **dict.fromkeys(("class", "id", "role"), (1 << DATED) - 1),
    **dict.fromkeys(("name", "property", "rel", "http-equiv"), WANTED),
    "itemprop": (1 << DATED) - 1 & ~(1 << RELATED) | WANTED,  # `suggestedAnswer` is an answer
    "style": 1 << INVISIBLE,
    "aria-hidden": 1 << HIDDEN,
}
"""Attributes that are read, each with the bits that its words may set."""

PRESENT = {"href": LINKED, "hidden": INVISIBLE, "aria-expanded": TOGGLE}
"""The bit of each attribute that marks an element by being there, whatever its value."""

MARKED_TAGS = {
    NAVIGATION: "nav menu", SIDEBAR: "aside", FOOTER: "footer", CAPTION: "figure figcaption", HIDDEN: "dialog",
    FORM: "fieldset option optgroup", MAIN: "main article", HEADER: "header",
}  # fmt: skip

# How blocks outside the main text begin; `0` is the beginning. An ASIDE may be a sentence, a LABEL is not.
ASIDE, LABEL = 0, 1
PHRASES = {
    ASIDE: "0advertis 0advert| 0anzeige| 0werbung| 0publicit 0read|more 0read|also 0also|read 0see|also| 0read|next"
    " 0related| 0more|on| 0more|from 0more|stories 0share|this 0share|on 0share|via 0follow|us 0follow|me 0sign|up"
    " 0subscribe| 0click|here 0all|rights|reserved 0copyright| 0filed|under 0posted|in| 0posted|by 0tagged| 0tags|"
    " 0categories| 0continue|reading 0skip|to 0leave|a|comment 0leave|a|reply 0view|comments 0post|a|comment"
    " 0join|the|conversation 0report|a|typo 0lesen|sie|auch 0mehr|zum|thema 0das|k|nnte|sie 0das|k|nnte|dich"
    " 0auch|interessant 0weiterlesen 0zum|weiterlesen 0lire|aussi 0lire|la|suite 0leer|m 0lea|tambi"
    " 0te|puede|interesar 0tambi|n|te 0leia|mais 0leia|tamb 0leggi|anche 0czytaj|tak 0czytaj|te| 0zobacz|te"
    " 0zobacz|tak 0recommended| 0you|may|also 0you|might|also 0you|may|like 0don|t|miss 0most|popular"
    " 0download|our|app 0get|our|newsletter 0get|the|latest 0want|more 0have|a|tip 0like|this 0print|this"
    " 0email|this 0this|article|was|originally 0this|post|was|originally 0this|article|originally"
    " 0this|post|contains|affiliate 0this|article|contains|affiliate 0we|may|earn 0about|the|author 0|rights"
    " 0was|this|article 0was|this|page 0war|der|artikel 0war|dieser|artikel 0war|dieser|beitrag 0hat|ihnen|der|artikel"
    " 0artikel|teilen 0beitrag|teilen 0diesen|artikel|teilen 0diesen|beitrag|teilen 0m|chten|sie|den|artikel"
    " 0weitere|artikel 0weitere|beitr 0weitere|themen 0weitere|aktuelle 0weitere|news 0mehr|lesen 0weiter|lesen"
    " 0jetzt|abonnieren 0jetzt|anmelden 0kommentar|schreiben 0schreibe|einen|kommentar 0alle|rechte|vorbehalten"
    " 0partager|cet 0laisser|un|commentaire 0voir|aussi 0tous|droits 0comparte|esto 0compartir|en 0deja|un|comentario"
    " 0ver|tambi 0todos|los|derechos 0condividi| 0lascia|un|commento 0vedi|anche 0tutti|i|diritti 0lees|ook 0zie|ook"
    " 0bekijk|ook 0impressum| 0datenschutz| 0for|the|latest 0lust|auf|mehr 0entdecke|weitere 0discover|more",
    LABEL: "0by| 0von| 0par| 0por| 0di| 0door| 0source| 0sources| 0quelle| 0photo| 0photos| 0foto| 0fotos| 0image|"
    " 0images| 0bild| 0credit| 0picture| 0video| 0updated| 0last|updated 0published| 0posted| 0stand| 0loading"
    " 0comments| 0kommentare| 0previous| 0next| 0zur|ck 0more| 0mehr| 0watch| 0listen| 0share| 0teilen| 0print|"
    " 0drucken| 0tweet 0newsletter 0login 0log|in 0home| 0search| 0suche 0menu| 0contact| 0kontakt| 0top| 0back|to"
    " 0reply| 0permalink 0continued 0gallery 0view| 0show| 0hide| 0close| 0open| 0copy| 0download| 0buy|"
    " 0check|out 0save| 0follow| 0author| 0autor| 0text|",
}  # fmt: skip
