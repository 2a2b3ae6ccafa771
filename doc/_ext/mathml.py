"""Equations as MathML, which browsers render without a script."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def visit_inline(writer, node):
    """Write an equation in a line of text."""
    writer.body.append(str(tex2mathml(node.astext())))
    raise nodes.SkipNode  # else the writer adds the node's text, which is LaTeX


def visit_block(writer, node):
    """Write an equation on a line of its own."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(str(tex2mathml(node.astext(), as_block=True)))
    writer.body.append("</div>")
    raise nodes.SkipNode


def setup(app):
    """Register the renderer of equations in HTML."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None)
    )
    app.add_css_file("mathml.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
