"""`pedigree trace`: pages to models and back, as text, picture and page."""
