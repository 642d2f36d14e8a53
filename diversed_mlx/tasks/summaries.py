"""What the two summarization tasks share: an article short enough for small models."""

MOST_CHARACTERS = 3000  # of an article: about 750 tokens; what a summary needs mostly stands at the start


def shorten(article: str) -> str:
    """Cut an article at the last space before its 3000th character.

    Args:
        article: the text.
    """
    article = article.strip()
    if len(article) <= MOST_CHARACTERS:
        return article
    return article[:MOST_CHARACTERS].rpartition(" ")[0] or article[:MOST_CHARACTERS]
